// order.c - what happened before what, within one kernel launch. The rules are in order.h.
#include "order.h"

// ---------------------------------------------------------------------------------------------------------------
// Time

static void order_update_safe(Order *order, uint32_t warp) {
    uint32_t least = order->known[warp][0];
    for (uint32_t u = 1; u < order->n_warps; u++) least = order->known[warp][u] < least ? order->known[warp][u] : least;
    order->safe[warp] = cell_of(order->serial, least + 1, 0, 0, 0);
}

// After 2^20 synchronisations the block goes on under a new serial number; what it did before counts as ordered.
static void order_renew(Order *order) {
    order->serial = stream_take_serials(1);
    order->time = 1;
    memset(order->known, 0, order->n_warps * sizeof(order->known[0]));
    memset(order->has_lanes, 0, sizeof(order->has_lanes));
    if (order->has_fences) memset(order->known_at_fence, 0, sizeof(order->known_at_fence));
    if (order->has_fences) memset(order->fence_time, 0, sizeof(order->fence_time));
    for (uint32_t w = 0; w < order->n_warps; w++) order_update_safe(order, w);
}

static void order_advance(Order *order) {
    if (++order->time == MOST_TIME) order_renew(order);
}

void order_begin_launch(Order *order, bool has_fences, bool has_named_barriers, bool has_partial_warps) {
    order->has_fences = has_fences;
    order->has_named_barriers = has_named_barriers;
    order->is_whole = !has_named_barriers && !has_partial_warps;
    order->first_serial = emulator.next_serial;
    order->stale = cell_of(stream_ordered_below(), 0, 0, 0, 0);
    order->objects = NULL;
    order->n_objects = 0;
}

void order_begin_block(Order *order, uint32_t n_warps) {
    order->n_warps = n_warps;
    order_renew(order);
    order->own_serial = order->serial;
    order->has_fenced = false;
    for (uint32_t w = 0; w < n_warps; w++) order->observed[w].n = order->acquired[w].n = 0;
}

// ---------------------------------------------------------------------------------------------------------------
// Publishing between blocks

static void seen_add(SeenList *list, Seen seen) {
    for (size_t i = 0; i < list->n; i++) {
        if (list->items[i].object != seen.object) continue;
        if (list->items[i].n_releases < seen.n_releases) list->items[i].n_releases = seen.n_releases;
        return;
    }
    list->items = grown(list->items, list->n, sizeof(Seen));
    list->items[list->n++] = seen;
}

static void seen_join(SeenList *list, const SeenList *other) {
    for (size_t i = 0; i < other->n; i++) seen_add(list, other->items[i]);
}

static uint32_t order_object(Order *order, uint64_t address) {
    for (size_t i = 0; i < order->n_objects; i++) {
        if (order->objects[i].address == address) return (uint32_t)i;
    }
    order->objects = grown(order->objects, order->n_objects, sizeof(SyncObject));
    order->objects[order->n_objects] = (SyncObject){.address = address};
    return (uint32_t)order->n_objects++;
}

// What the atomic of this lane publishes: for each thread, how far it was fenced and is known here.
static uint32_t *order_published(const Order *order, uint32_t warp, uint32_t lane) {
    uint32_t *published = checked_alloc(order->n_warps * LANES * sizeof(uint32_t));
    bool any = false;
    for (uint32_t t = 0; t < order->n_warps * LANES; t++) {
        uint32_t u = t / LANES, own = u == warp && t % LANES == lane;
        uint32_t fenced = order->fence_time[warp * LANES + lane] > 0 ? order->known_at_fence[warp][u] : 0;
        uint32_t fence = order->fence_time[t];
        if (fence > fenced && (own || fence <= order->known[warp][u])) fenced = fence;
        published[t] = fenced;
        any |= fenced > 0;
    }
    if (any) return published;
    free(published);
    return NULL;
}

void order_atomic(Order *order, uint32_t warp, uint32_t lane, uint64_t address) {
    if (!order->has_fences) return;
    uint32_t index = order_object(order, address);
    SyncObject *object = &order->objects[index];
    Release release = {.self = cell_of(order->serial, order->time, warp, lane, CELL_ATOMIC),
                       .published = order->has_fenced ? order_published(order, warp, lane) : NULL};
    if (object->n_releases > 0) seen_add(&order->observed[warp], (Seen){index, (uint32_t)object->n_releases});
    seen_join(&release.acquired, &order->acquired[warp]);
    if (object->n_releases > 0) seen_join(&release.acquired, &object->releases[object->n_releases - 1].acquired);
    object->releases = grown(object->releases, object->n_releases, sizeof(Release));
    object->releases[object->n_releases++] = release;
}

void order_fence(Order *order, uint32_t warp, uint32_t lanes) {
    for (uint32_t l = 0; l < LANES; l++) {
        if (lanes >> l & 1) order->fence_time[warp * LANES + l] = order->time;
    }
    order->has_fenced = true;
    memcpy(order->known_at_fence[warp], order->known[warp], sizeof(order->known[warp]));
    seen_join(&order->acquired[warp], &order->observed[warp]);
    order_advance(order);
}

void order_end_launch(Order *order) {
    for (size_t i = 0; i < order->n_objects; i++) {
        SyncObject *object = &order->objects[i];
        for (size_t j = 0; j < object->n_releases; j++) {
            free(object->releases[j].published);
            free(object->releases[j].acquired.items);
        }
        free(object->releases);
    }
    free(order->objects);
    order->objects = NULL;
    order->n_objects = 0;
}

// Among the first releases of an object, or what they had acquired: the last one has it all.
static bool order_is_in_releases(const Order *order, Cell cell, const Seen *seen) {
    const SyncObject *object = &order->objects[seen->object];
    size_t low = 0, high = seen->n_releases;  // the first release of the cell's block; serials never fall
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (cell_serial(object->releases[middle].self) < cell_serial(cell)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    for (; low < seen->n_releases && cell_serial(object->releases[low].self) == cell_serial(cell); low++) {
        const Release *release = &object->releases[low];
        if (release->self == cell) return true;  // the atomic itself
        const uint32_t *published = release->published;
        if (published && cell_time(cell) <= published[cell_warp(cell) * LANES + cell_lane(cell)]) return true;
    }
    const SeenList *acquired = &object->releases[seen->n_releases - 1].acquired;
    for (size_t i = 0; i < acquired->n; i++) {
        const Seen *other = &acquired->items[i];
        if (other->object != seen->object && order_is_in_releases(order, cell, other)) return true;
    }
    return false;
}

// Was what left the cell, in another block of the launch, published by an atomic that was acquired?
static bool order_is_published(const Order *order, Cell cell, const SeenList *acquired) {
    for (size_t i = 0; i < acquired->n; i++) {
        if (order_is_in_releases(order, cell, &acquired->items[i])) return true;
    }
    return false;
}

// ---------------------------------------------------------------------------------------------------------------
// Synchronisation within a block

void order_barrier(Order *order, uint32_t warps) {
    uint32_t joined[MOST_WARPS] = {0};
    SeenList observed = {NULL, 0}, acquired = {NULL, 0};
    for (uint32_t w = 0; w < order->n_warps; w++) {
        if (!(warps >> w & 1)) continue;
        for (uint32_t u = 0; u < order->n_warps; u++) {
            if (order->known[w][u] > joined[u]) joined[u] = order->known[w][u];
        }
        if (order->n_objects > 0) {
            seen_join(&observed, &order->observed[w]);
            seen_join(&acquired, &order->acquired[w]);
        }
    }
    for (uint32_t w = 0; w < order->n_warps; w++) {
        if (warps >> w & 1) joined[w] = order->time;
    }
    for (uint32_t w = 0; w < order->n_warps; w++) {
        if (!(warps >> w & 1)) continue;
        memcpy(order->known[w], joined, order->n_warps * sizeof(uint32_t));
        order_update_safe(order, w);
        seen_join(&order->observed[w], &observed);
        seen_join(&order->acquired[w], &acquired);
    }
    free(observed.items);
    free(acquired.items);
    order_advance(order);
}

void order_syncwarp(Order *order, uint32_t warp, uint32_t lanes, uint32_t live) {
    if ((lanes & live) == live) {
        order->known[warp][warp] = order->time;
        order_update_safe(order, warp);
    } else {
        uint32_t(*known)[LANES] = order->lane_known[warp];
        if (!order->has_lanes[warp]) memset(known, 0, sizeof(order->lane_known[warp]));
        order->has_lanes[warp] = true;
        uint32_t joined[LANES] = {0};
        for (uint32_t l = 0; l < LANES; l++) {
            if (!(lanes >> l & 1)) continue;
            for (uint32_t k = 0; k < LANES; k++) joined[k] = known[l][k] > joined[k] ? known[l][k] : joined[k];
        }
        for (uint32_t l = 0; l < LANES; l++) joined[l] = lanes >> l & 1 ? order->time : joined[l];
        for (uint32_t l = 0; l < LANES; l++) {
            if (lanes >> l & 1) memcpy(known[l], joined, sizeof(joined));
        }
    }
    order_advance(order);
}

// ---------------------------------------------------------------------------------------------------------------
// Verdicts

// Lanes of a warp in aligned groups of 2, 4 … 32: numbered like a heap, 1 is the whole warp, 16 … 31 are pairs.
static uint32_t group_of(uint32_t lanes) {
    uint32_t low = (uint32_t)__builtin_ctz(lanes), high = 31u - (uint32_t)__builtin_clz(lanes);
    uint32_t node_low = low + 32, node_high = high + 32;
    while (node_low != node_high || node_low >= 32) {
        node_low /= 2;
        node_high /= 2;
    }
    return node_low;
}

static uint32_t group_lanes(uint32_t group) {
    uint32_t first = group, size = 1;
    while (first < 32) {
        first *= 2;
        size *= 2;
    }
    return (size == 32 ? ALL_LANES : (1u << size) - 1) << (first - 32);
}

// Do all lanes in `lanes` of this warp know each other's past until `time`?
static bool order_is_lane_known(const Order *order, uint32_t warp, uint32_t lane, uint32_t lanes, uint32_t time) {
    if (time <= order->known[warp][warp]) return true;
    if (!order->has_lanes[warp]) return (lanes & ~(1u << lane)) == 0;
    for (uint32_t l = 0; l < LANES; l++) {
        if ((lanes >> l & 1) && l != lane && time > order->lane_known[warp][lane][l]) return false;
    }
    return true;
}

// Of another block of the launch, or of an earlier operation.
static bool order_is_other_before(const Order *order, Cell cell, uint32_t warp) {
    uint32_t serial = cell_serial(cell);
    if (serial >= order->own_serial && serial < order->serial) return true;
    if (serial < order->first_serial) return cell < order->stale || stream_is_ordered(serial);
    return order->n_objects > 0 && order_is_published(order, cell, &order->acquired[warp]);
}

bool order_is_writer_before(const Order *order, Cell cell, uint32_t warp, uint32_t lane) {
    if (cell_serial(cell) != order->serial) return order_is_other_before(order, cell, warp);
    if (cell_warp(cell) != warp) return cell_time(cell) <= order->known[warp][cell_warp(cell)];
    return order_is_lane_known(order, warp, lane, 1u << cell_lane(cell), cell_time(cell));
}

bool order_is_reader_before(const Order *order, Cell cell, uint32_t warp, uint32_t lane) {
    uint32_t time = cell_time(cell);
    if (cell_serial(cell) != order->serial) {
        if (cell_serial(cell) < order->first_serial || cell_flags(cell) == READ_LANE) {
            return order_is_other_before(order, cell, warp);
        }
        // Which other blocks, and which of their lanes, is not known any more: all must have published by now.
        return order->acquired[warp].n > 0 && order->acquired[warp].items[0].n_releases > 0;
    }
    switch (cell_flags(cell)) {
    case READ_LANE: return order_is_writer_before(order, cell & ~(Cell)3, warp, lane);
    case READ_WARP:
        if (cell_warp(cell) != warp) return time <= order->known[warp][cell_warp(cell)];
        return order_is_lane_known(order, warp, lane, group_lanes(cell_lane(cell)), time);
    case READ_WARPS:
        for (uint32_t u = cell_warp(cell); u <= cell_lane(cell); u++) {
            if (u == warp ? !order_is_lane_known(order, warp, lane, ALL_LANES, time) : time > order->known[warp][u]) {
                return false;
            }
        }
        return true;
    default: return false;  // other blocks read it too
    }
}

static bool order_is_reader_replaced(const Order *order, Cell cell, uint32_t warp, uint32_t lanes) {
    for (uint32_t l = 0; l < LANES; l++) {
        if ((lanes >> l & 1) && !order_is_reader_before(order, cell, warp, l)) return false;
    }
    return true;
}

Cell order_merge_read(const Order *order, Cell cell, uint32_t warp, uint32_t lanes) {
    bool is_one = (lanes & (lanes - 1)) == 0;
    uint32_t lane = (uint32_t)__builtin_ctz(lanes);
    if (cell_serial(cell) < order->first_serial || order_is_reader_replaced(order, cell, warp, lanes)) {
        if (is_one) return cell_of(order->serial, order->time, warp, lane, READ_LANE);
        return cell_of(order->serial, order->time, warp, group_of(lanes), READ_WARP);
    }
    uint32_t mode = cell_flags(cell);
    if (cell_serial(cell) != order->serial || mode == READ_BLOCKS) {
        return cell_of(order->serial, order->time, warp, lane, READ_BLOCKS);
    }
    uint32_t low = cell_warp(cell), high = mode == READ_WARPS ? cell_lane(cell) : low;
    if (low == warp && high == warp && mode != READ_WARPS) {
        uint32_t before = mode == READ_LANE ? 1u << cell_lane(cell) : group_lanes(cell_lane(cell));
        return cell_of(order->serial, order->time, warp, group_of(lanes | before), READ_WARP);
    }
    if (!order->has_named_barriers) return cell_of(order->serial, order->time, 0, order->n_warps - 1, READ_WARPS);
    return cell_of(order->serial, order->time, low < warp ? low : warp, high > warp ? high : warp, READ_WARPS);
}
