/* Commands from watchers: a wanted budget, pause, resume, a profile. Each has a generation and, once dealt with, an
 * outcome. */
#include "stats/stats_page.h"

#include <stdio.h>
#include <string.h>

#define MAX_GARBLED_BEATS 40u

enum { COMMAND_BUDGET = 1, COMMAND_PAUSE = 2, COMMAND_PROFILE = 3, COMMAND_BUDGET_AT = 4, COMMAND_CANCEL = 5 };

static uint32_t check_of(const dafi_request_t *request) {
    return (uint32_t)((request->generation * 31 + request->kind) * 31 + request->value + request->step * 37);
}

static void set_outcome(struct dafi_page *page, uint64_t generation, const daf_outcome_t *outcome) {
    uint32_t index = generation % DAFI_NUM_COMMANDS;
    dafi_outcome_record_t *record = &page->commands.outcomes[index];
    *record = (dafi_outcome_record_t){.sequence = record->sequence,
                                      .generation = generation,
                                      .state = outcome->state,
                                      .least_bytes = outcome->least_bytes};
    memcpy(record->reason, outcome->reason, sizeof outcome->reason);
    page->changed_outcomes |= 1u << index;
}

static void try_budget(daf_arena_t *arena, uint64_t num_bytes, daf_outcome_t *outcome) {
    uint64_t before = dafi_max(arena->budget_bytes, arena->ceiling_bytes);
    dafi_budget_set(arena, num_bytes, false, outcome);
    if (outcome->state != DAF_REFUSED) arena->ceiling_bytes = dafi_max(before, num_bytes);
}

/* A budget was tried: one that was pending gives way to it, and it may be pending itself. */
static void note_pending(struct dafi_page *page, uint64_t generation, const daf_outcome_t *outcome) {
    if (outcome->state == DAF_REFUSED) return;
    if (page->pending_generation && page->pending_generation + DAFI_NUM_COMMANDS > generation) {
        daf_outcome_t overtaken = {.state = DAF_REFUSED, .reason = "a later budget took its place"};
        set_outcome(page, page->pending_generation, &overtaken);
    }
    page->pending_generation = outcome->state == DAF_PENDING ? generation : 0;
}

static void apply_budget(daf_arena_t *arena, uint64_t generation, uint64_t num_bytes, daf_outcome_t *outcome) {
    try_budget(arena, num_bytes, outcome);
    note_pending(arena->page, generation, outcome);
}

static void end_scheduled(struct dafi_page *page, const char *reason) {
    daf_outcome_t outcome = {.state = DAF_REFUSED};
    snprintf(outcome.reason, sizeof outcome.reason, "%s", reason);
    if (page->scheduled.generation) set_outcome(page, page->scheduled.generation, &outcome);
    page->scheduled = (dafi_scheduled_t){0};
}

static void schedule(daf_arena_t *arena, const dafi_request_t *request, daf_outcome_t *outcome) {
    struct dafi_page *page = arena->page;
    if (arena->counts.steps >= request->step) {
        snprintf(outcome->reason, sizeof outcome->reason, "step %llu has begun already",
                 (unsigned long long)request->step);
        return;
    }
    end_scheduled(page, "a later budget took its place");
    page->scheduled =
        (dafi_scheduled_t){.generation = request->generation, .num_bytes = request->value, .step = request->step};
    outcome->state = DAF_PENDING;
    snprintf(outcome->reason, sizeof outcome->reason, "waits for step %llu", (unsigned long long)request->step);
}

static void cancel(struct dafi_page *page, uint64_t generation, daf_outcome_t *outcome) {
    bool is_waiting = page->scheduled.generation == generation && !page->scheduled.is_tried;
    outcome->state = is_waiting ? DAF_APPLIED : DAF_REFUSED;
    snprintf(outcome->reason, sizeof outcome->reason, "%s", is_waiting ? "" : "it waits no more");
    if (is_waiting) end_scheduled(page, "taken back");
}

void dafi_commands_step(daf_arena_t *arena) {
    if (!arena->page) return;
    dafi_scheduled_t *scheduled = &arena->page->scheduled;
    if (!scheduled->generation || scheduled->is_tried || arena->counts.steps < scheduled->step) return;
    try_budget(arena, scheduled->num_bytes, &scheduled->outcome);
    scheduled->is_tried = true;
}

static void tell_scheduled(struct dafi_page *page) {
    dafi_scheduled_t *scheduled = &page->scheduled;
    if (!scheduled->is_tried) return;
    daf_outcome_t outcome = scheduled->outcome;
    if (outcome.state == DAF_APPLIED)
        snprintf(outcome.reason, sizeof outcome.reason, "at step %llu", (unsigned long long)scheduled->step);
    note_pending(page, scheduled->generation, &outcome);
    set_outcome(page, scheduled->generation, &outcome);
    *scheduled = (dafi_scheduled_t){0};
}

static void apply_pause(daf_arena_t *arena, uint64_t is_paused, daf_outcome_t *outcome) {
    atomic_store_explicit(&arena->is_paused, is_paused != 0, memory_order_relaxed);
    dafi_event(arena, is_paused ? DAFI_EVENT_PAUSE : DAFI_EVENT_RESUME, 0, 0, 0, NULL);
    *outcome = (daf_outcome_t){.state = DAF_APPLIED};
}

/* The budget that was pending is reached, or another is in force: the owner's, or what the run could not do without. */
static void end_pending(daf_arena_t *arena, bool is_reached) {
    struct dafi_page *page = arena->page;
    daf_outcome_t outcome = {.state = is_reached ? DAF_APPLIED : DAF_REFUSED};
    outcome.least_bytes = is_reached ? dafi_least_budget(arena, 0) : arena->budget_bytes;
    if (!is_reached) snprintf(outcome.reason, sizeof outcome.reason, "the run needed more, or set a budget of its own");
    set_outcome(page, page->pending_generation, &outcome);
    page->pending_generation = 0;
}

/* False: the request is not wholly there yet. */
static bool apply_one(daf_arena_t *arena, uint64_t generation) {
    struct dafi_page *page = arena->page;
    dafi_request_t request = page->commands.requests[generation % DAFI_NUM_COMMANDS];
    daf_outcome_t outcome = {.state = DAF_REFUSED, .reason = "unknown command"};
    if (request.generation != generation || request.check != check_of(&request)) {
        if (page->num_garbled++ < MAX_GARBLED_BEATS) return false;
        snprintf(outcome.reason, sizeof outcome.reason, "the request could not be read");
    } else if (request.kind == COMMAND_BUDGET) {
        apply_budget(arena, generation, request.value, &outcome);
    } else if (request.kind == COMMAND_PAUSE) {
        apply_pause(arena, request.value, &outcome);
    } else if (request.kind == COMMAND_PROFILE) {
        atomic_fetch_add(&arena->num_profiles_asked, 1);
        outcome = (daf_outcome_t){.state = DAF_APPLIED};
    } else if (request.kind == COMMAND_BUDGET_AT) {
        outcome.reason[0] = 0;
        schedule(arena, &request, &outcome);
    } else if (request.kind == COMMAND_CANCEL) {
        cancel(page, request.value, &outcome);
    }
    page->num_garbled = 0;
    set_outcome(page, generation, &outcome);
    return true;
}

void dafi_commands_apply(daf_arena_t *arena) {
    struct dafi_page *page = arena->page;
    dafi_command_page_t *commands = &page->commands;
    uint64_t requested = commands->requested;
    if (requested > commands->done + DAFI_NUM_COMMANDS)
        commands->done = requested - DAFI_NUM_COMMANDS; /* overwritten before we came */
    tell_scheduled(page);
    while (commands->done < requested && apply_one(arena, commands->done + 1)) commands->done++;
    bool is_reached = dafi_budget_settle(arena);
    if (page->pending_generation && arena->pending_bytes == 0) end_pending(arena, is_reached);
}

/* The file was cut off: what was asked for is lost, what became of earlier requests is not. */
static void write_anew(struct dafi_page *page) {
    page->commands.requested = page->commands.done;
    memset(page->commands.requests, 0, sizeof page->commands.requests);
    dafi_file_write(page->command_file, &page->commands, sizeof page->commands, 0);
}

void dafi_commands_read(struct dafi_page *page) {
    dafi_command_page_t found;
    bool is_whole = dafi_file_read(page->command_file, &found, sizeof found, 0);
    if (!is_whole || memcmp(found.magic, page->commands.magic, sizeof found.magic) != 0) {
        write_anew(page);
        return;
    }
    page->commands.requested = found.requested;
    memcpy(page->commands.requests, found.requests, sizeof found.requests);
}

static void write_at(struct dafi_page *page, const void *part, uint64_t num_bytes) {
    uint64_t offset = (uint64_t)((const uint8_t *)part - (const uint8_t *)&page->commands);
    dafi_file_write(page->command_file, part, num_bytes, offset);
}

void dafi_commands_write(struct dafi_page *page) {
    for (uint32_t left = page->changed_outcomes; left; left &= left - 1) {
        dafi_outcome_record_t *record = &page->commands.outcomes[__builtin_ctz(left)];
        for (int i = 0; i < 2; i++) { /* odd while it changes, even when it has */
            record->sequence++;
            write_at(page, record, sizeof *record);
        }
    }
    if (page->changed_outcomes) write_at(page, &page->commands.done, sizeof page->commands.done);
    page->changed_outcomes = 0;
}
