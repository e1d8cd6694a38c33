/* Checks of our own work, in three tiers of cost. All are off in a release; DAF_CHECKS=1, 2 or 3 turns on as many.
 *
 *   dafi_assert            what a caller inside the arena has to see to: some instructions
 *   dafi_assert_internal   what a function has just made true of a structure: a look at its neighbours
 *   dafi_assert_expensive  the whole arena: every structure walked, every counter compared
 *
 * A check that fails ends the process: books that are wrong would give the same memory to two tensors.
 */
#ifndef DAF_ASSERT_H
#define DAF_ASSERT_H

#ifndef DAF_CHECKS
#define DAF_CHECKS 0
#endif

#if DAF_CHECKS > 0
#include <stdio.h>
#include <stdlib.h>
#define DAFI_CHECK(condition)                                                                                          \
    ((condition) ? (void)0 : (fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition), abort()))
#define dafi_assert(condition) DAFI_CHECK(condition)
#else
#define dafi_assert(condition) ((void)0)
#endif

#if DAF_CHECKS > 1
#define dafi_assert_internal(condition) DAFI_CHECK(condition)
#else
#define dafi_assert_internal(condition) ((void)0)
#endif

#if DAF_CHECKS > 2
#define dafi_assert_expensive(condition) DAFI_CHECK(condition)
#else
#define dafi_assert_expensive(condition) ((void)0)
#endif

#endif
