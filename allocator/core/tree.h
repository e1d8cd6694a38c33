/* A red-black tree over numbered nodes, ordered by (key, tie), smallest first.
 *
 * Why numbers and not pointers: a node is 32 bytes instead of 40, tables can be saved or moved, and node 0 is the
 * shared nil. The owner keeps the nodes in a table; several trees may share one as long as a node is in at most one of
 * them. Not locked.
 */
#ifndef DAF_TREE_H
#define DAF_TREE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct dafi_node {
    uint64_t key; /* set by the owner before insert, constant while in the tree */
    uint64_t tie;
    uint32_t left, right, parent; /* 0: none */
    uint32_t is_red;
} dafi_node_t;

typedef struct dafi_tree {
    dafi_node_t *nodes;
    uint32_t root;
    uint32_t first; /* the smallest: eviction and best fit start here without a descent */
    uint64_t num_nodes;
} dafi_tree_t;

void dafi_tree_insert(dafi_tree_t *tree, uint32_t id);
void dafi_tree_erase(dafi_tree_t *tree, uint32_t id);
/* The smallest node with (key, tie) not below the given; 0: none. */
uint32_t dafi_tree_lower_bound(const dafi_tree_t *tree, uint64_t key, uint64_t tie);
uint32_t dafi_tree_last(const dafi_tree_t *tree);
uint32_t dafi_tree_next(const dafi_tree_t *tree, uint32_t id);
uint32_t dafi_tree_prev(const dafi_tree_t *tree, uint32_t id);
/* Order, colours, black heights, parents and the count; O(n). */
bool dafi_tree_is_valid(const dafi_tree_t *tree);

#endif
