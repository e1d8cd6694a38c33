/* Commands from watchers: a wanted budget, pause, resume. Each has a generation and, once dealt with, an outcome. */
#include "page.h"

#include <stdio.h>
#include <string.h>

#define MAX_GARBLED_BEATS 40u

enum { COMMAND_BUDGET = 1, COMMAND_PAUSE = 2 };

static uint32_t check_of(const dafi_request_t *request) {
    return (uint32_t)((request->generation * 31 + request->kind) * 31 + request->value);
}

static void write_outcome(struct dafi_page *page, uint64_t generation, const daf_outcome_t *outcome) {
    dafi_outcome_record_t *record = &page->commands->outcomes[generation % DAFI_NUM_COMMANDS];
    dafi_sequence_begin(&record->sequence);
    record->generation = generation;
    record->state = outcome->state;
    record->least_bytes = outcome->least_bytes;
    memset(record->reason, 0, sizeof record->reason);
    memcpy(record->reason, outcome->reason, sizeof outcome->reason);
    dafi_sequence_end(&record->sequence);
}

static void apply_budget(daf_arena_t *arena, uint64_t generation, uint64_t num_bytes, daf_outcome_t *outcome) {
    struct dafi_page *page = arena->page;
    uint64_t before = dafi_max(arena->budget_bytes, arena->ceiling_bytes);
    dafi_budget_set(arena, num_bytes, false, outcome);
    if (outcome->state == DAF_REFUSED) return;
    arena->ceiling_bytes = dafi_max(before, num_bytes);
    if (page->pending_generation && page->pending_generation + DAFI_NUM_COMMANDS > generation) {
        daf_outcome_t overtaken = {.state = DAF_REFUSED, .reason = "a later budget took its place"};
        write_outcome(page, page->pending_generation, &overtaken);
    }
    page->pending_generation = outcome->state == DAF_PENDING ? generation : 0;
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
    write_outcome(page, page->pending_generation, &outcome);
    page->pending_generation = 0;
}

/* False: the request is not wholly there yet. */
static bool apply_one(daf_arena_t *arena, uint64_t generation) {
    struct dafi_page *page = arena->page;
    dafi_request_t request = page->commands->requests[generation % DAFI_NUM_COMMANDS];
    daf_outcome_t outcome = {.state = DAF_REFUSED, .reason = "unknown command"};
    if (request.generation != generation || request.check != check_of(&request)) {
        if (page->num_garbled++ < MAX_GARBLED_BEATS) return false;
        snprintf(outcome.reason, sizeof outcome.reason, "the request could not be read");
    } else if (request.kind == COMMAND_BUDGET) {
        apply_budget(arena, generation, request.value, &outcome);
    } else if (request.kind == COMMAND_PAUSE) {
        apply_pause(arena, request.value, &outcome);
    }
    page->num_garbled = 0;
    write_outcome(page, generation, &outcome);
    return true;
}

void dafi_commands_apply(daf_arena_t *arena) {
    struct dafi_page *page = arena->page;
    dafi_command_page_t *commands = page->commands;
    uint64_t done = atomic_load_explicit(&commands->done, memory_order_relaxed);
    uint64_t requested = atomic_load_explicit(&commands->requested, memory_order_acquire);
    if (requested > done + DAFI_NUM_COMMANDS) done = requested - DAFI_NUM_COMMANDS; /* overwritten before we came */
    while (done < requested && apply_one(arena, done + 1))
        atomic_store_explicit(&commands->done, ++done, memory_order_release);
    bool is_reached = dafi_budget_settle(arena);
    if (page->pending_generation && arena->pending_bytes == 0) end_pending(arena, is_reached);
}
