/* The red-black tree: insertion and deletion with at most three rotations each. */
#include "core/tree.h"

#define N(id) (tree->nodes[id])

static bool is_less(const dafi_node_t *a, const dafi_node_t *b) {
    return a->key != b->key ? a->key < b->key : a->tie < b->tie;
}

static uint32_t *child_link(dafi_tree_t *tree, uint32_t parent, uint32_t child) {
    if (parent == 0) return &tree->root;
    return N(parent).left == child ? &N(parent).left : &N(parent).right;
}

/* Lift `id`'s child over it: the right child when `leftwards`, else the left one. Returns the lifted child. */
static uint32_t rotate(dafi_tree_t *tree, uint32_t id, bool leftwards) {
    uint32_t child = leftwards ? N(id).right : N(id).left;
    uint32_t inner = leftwards ? N(child).left : N(child).right;
    *child_link(tree, N(id).parent, id) = child;
    N(child).parent = N(id).parent;
    *(leftwards ? &N(child).left : &N(child).right) = id;
    *(leftwards ? &N(id).right : &N(id).left) = inner;
    if (inner) N(inner).parent = id;
    N(id).parent = child;
    return child;
}

static void repair_red_parent(dafi_tree_t *tree, uint32_t id) {
    while (N(N(id).parent).is_red) {
        uint32_t parent = N(id).parent, grand = N(parent).parent;
        bool is_left = N(grand).left == parent;
        uint32_t uncle = is_left ? N(grand).right : N(grand).left;
        if (N(uncle).is_red) {
            N(parent).is_red = N(uncle).is_red = 0;
            N(grand).is_red = 1;
            id = grand;
            continue;
        }
        if (id == (is_left ? N(parent).right : N(parent).left)) parent = rotate(tree, parent, is_left);
        N(parent).is_red = 0;
        N(grand).is_red = 1;
        rotate(tree, grand, !is_left);
        break;
    }
    N(tree->root).is_red = 0;
}

void dafi_tree_insert(dafi_tree_t *tree, uint32_t id) {
    uint32_t parent = 0, *link = &tree->root;
    bool is_first = true;
    while (*link) {
        parent = *link;
        bool goes_left = is_less(&N(id), &N(parent));
        is_first &= goes_left;
        link = goes_left ? &N(parent).left : &N(parent).right;
    }
    *link = id;
    N(id).parent = parent;
    N(id).left = N(id).right = 0;
    N(id).is_red = 1;
    if (is_first) tree->first = id;
    tree->num_nodes++;
    repair_red_parent(tree, id);
}

/* `id` (perhaps nil, under `parent`) carries one black too few. */
static void repair_black(dafi_tree_t *tree, uint32_t id, uint32_t parent) {
    while (id != tree->root && !N(id).is_red) {
        bool is_left = N(parent).left == id;
        uint32_t sibling = is_left ? N(parent).right : N(parent).left;
        if (N(sibling).is_red) {
            N(sibling).is_red = 0;
            N(parent).is_red = 1;
            rotate(tree, parent, is_left);
            sibling = is_left ? N(parent).right : N(parent).left;
        }
        uint32_t near = is_left ? N(sibling).left : N(sibling).right;
        uint32_t far = is_left ? N(sibling).right : N(sibling).left;
        if (!N(near).is_red && !N(far).is_red) {
            N(sibling).is_red = 1;
            id = parent;
            parent = N(id).parent;
            continue;
        }
        if (!N(far).is_red) {
            N(near).is_red = 0;
            N(sibling).is_red = 1;
            far = sibling;
            sibling = rotate(tree, sibling, !is_left);
        }
        N(sibling).is_red = N(parent).is_red;
        N(parent).is_red = N(far).is_red = 0;
        rotate(tree, parent, is_left);
        id = tree->root;
    }
    N(id).is_red = 0;
}

static void replace(dafi_tree_t *tree, uint32_t old, uint32_t new) {
    *child_link(tree, N(old).parent, old) = new;
    if (new) N(new).parent = N(old).parent;
}

void dafi_tree_erase(dafi_tree_t *tree, uint32_t id) {
    if (tree->first == id) tree->first = dafi_tree_next(tree, id);
    uint32_t child, parent;
    bool lost_black;
    if (N(id).left && N(id).right) {
        uint32_t heir = N(id).right;
        while (N(heir).left) heir = N(heir).left;
        lost_black = !N(heir).is_red;
        child = N(heir).right;
        parent = N(heir).parent == id ? heir : N(heir).parent;
        if (parent != heir) {
            replace(tree, heir, child);
            N(heir).right = N(id).right;
            N(N(heir).right).parent = heir;
        }
        replace(tree, id, heir);
        N(heir).left = N(id).left;
        N(N(heir).left).parent = heir;
        N(heir).is_red = N(id).is_red;
    } else {
        child = N(id).left ? N(id).left : N(id).right;
        parent = N(id).parent;
        lost_black = !N(id).is_red;
        replace(tree, id, child);
    }
    tree->num_nodes--;
    if (lost_black) repair_black(tree, child, parent);
}

uint32_t dafi_tree_lower_bound(const dafi_tree_t *tree, uint64_t key, uint64_t tie) {
    dafi_node_t wanted = {.key = key, .tie = tie};
    uint32_t found = 0, id = tree->root;
    while (id) {
        bool is_below = is_less(&N(id), &wanted);
        if (!is_below) found = id;
        id = is_below ? N(id).right : N(id).left;
    }
    return found;
}

uint32_t dafi_tree_last(const dafi_tree_t *tree) {
    uint32_t id = tree->root;
    while (N(id).right) id = N(id).right;
    return id;
}

/* The neighbour in order: the nearest on that side below `id`, else the first ancestor that `id` is on the other side
 * of. */
static uint32_t neighbour(const dafi_tree_t *tree, uint32_t id, bool after) {
    uint32_t below = after ? N(id).right : N(id).left;
    if (below) {
        for (uint32_t deeper = below; deeper; deeper = after ? N(deeper).left : N(deeper).right) below = deeper;
        return below;
    }
    uint32_t parent = N(id).parent;
    while (parent && (after ? N(parent).right : N(parent).left) == id) {
        id = parent;
        parent = N(id).parent;
    }
    return parent;
}

uint32_t dafi_tree_next(const dafi_tree_t *tree, uint32_t id) {
    return neighbour(tree, id, true);
}

uint32_t dafi_tree_prev(const dafi_tree_t *tree, uint32_t id) {
    return neighbour(tree, id, false);
}

/* The black height below `id`, or -1. Recursion is as deep as the tree: at most 64. */
static int black_height(const dafi_tree_t *tree, uint32_t id, uint64_t *count) {
    if (id == 0) return 0;
    uint32_t left = N(id).left, right = N(id).right;
    ++*count;
    if ((left && (N(left).parent != id || is_less(&N(id), &N(left)))) ||
        (right && (N(right).parent != id || is_less(&N(right), &N(id)))))
        return -1;
    if (N(id).is_red && (N(left).is_red || N(right).is_red)) return -1;
    int below_left = black_height(tree, left, count), below_right = black_height(tree, right, count);
    if (below_left < 0 || below_left != below_right) return -1;
    return below_left + !N(id).is_red;
}

bool dafi_tree_is_valid(const dafi_tree_t *tree) {
    uint64_t count = 0;
    uint32_t first = tree->root;
    while (N(first).left) first = N(first).left;
    return !N(0).is_red && black_height(tree, tree->root, &count) >= 0 && count == tree->num_nodes &&
           first == tree->first;
}
