// Light, dark, or as the system says.

const KEY = "daf-theme";
const CHOICES = ["auto", "light", "dark"];

/** Wire `button` to turn through the themes; `onChange` is called whenever the colours in force change. */
export function startTheme(button, onChange) {
  const system = matchMedia("(prefers-color-scheme: dark)");
  let choice = read();
  const apply = () => {
    document.documentElement.dataset.theme = choice === "auto" ? (system.matches ? "dark" : "light") : choice;
    button.textContent = `Theme: ${choice}`;
    onChange();
  };
  button.addEventListener("click", () => {
    choice = CHOICES[(CHOICES.indexOf(choice) + 1) % CHOICES.length];
    write(choice);
    apply();
  });
  system.addEventListener("change", apply);
  apply();
}

// A report opened from disk may have no storage: then the choice lasts as long as the page.
function read() {
  try {
    return CHOICES.find((choice) => choice === localStorage.getItem(KEY)) ?? "auto";
  } catch {
    return "auto";
  }
}

function write(choice) {
  try {
    localStorage.setItem(KEY, choice);
  } catch {
    // see read()
  }
}
