// report.h - all that is printed while a run goes on: the banner, tables of memory, the line of a step, the last lines.
//
// Rank 0 alone is heard: the others' standard output goes nowhere (ranks.h).
#ifndef REPORT_H
#define REPORT_H

#include "budget.h"
#include "job.h"
#include "log.h"

typedef struct {
    bool terminal;  // a line in place of the last one, instead of a line per step
    bool reported[PHASES];
} Report;

// ---------------------------------------------------------------------------------------------------------------
// Tables of memory

// A row of a table: bytes of a kind in every phase's peak, MiB; kind < 0: of all.
static inline void report_table_row(const Ledger *ledger, const char *name, int tier, int kind) {
    printf("  %-22s", name);
    for (int p = 0; p < PHASES; p++) {
        const PhaseLedger *phase = &ledger->phases[p];
        if (!phase->occurred) continue;
        printf("%11.2f", size_mib(kind < 0 ? phase->peak[tier] : phase->kinds[tier][kind]));
    }
    putchar('\n');
}

// The memory of every phase at its peak by kind, MiB.
static inline void report_table(const Ledger *ledger, const char *title) {
    printf("%-24s", title);
    for (int p = 0; p < PHASES; p++) {
        if (ledger->phases[p].occurred) printf("%11s", ledger_phase_name(p));
    }
    putchar('\n');
    for (int t = 0; t < TIERS; t++) {
        if (ledger_peak(ledger, (Tier)t) == 0) continue;
        for (int k = 0; k < KINDS; k++) {
            char name[64];
            size_t most = 0;
            for (int p = 0; p < PHASES; p++) most = size_max(most, ledger->phases[p].kinds[t][k]);
            snprintf(name, sizeof(name), t == TIER_DEVICE ? "%s%s" : "%s: %s",
                     t == TIER_DEVICE ? "" : ledger_tier_name(t), ledger_kind_name(k));
            if (most > 0) report_table_row(ledger, name, t, k);
        }
        char name[64];
        snprintf(name, sizeof(name), "%s peak", ledger_tier_name(t));
        report_table_row(ledger, name, t, -1);
    }
}

// How much of what it may use a run that fits will take.
static inline void report_fits(const Budget *budget, const Ledger *plan, double headroom) {
    printf("fits: %.1f MiB of %.1f MiB", size_mib(budget_needed(budget, plan, TIER_DEVICE)),
           size_mib(budget->bytes[TIER_DEVICE]));
    if (!budget->shared) {
        printf(" on the device, %.1f MiB of %.1f MiB on the host", size_mib(ledger_peak(plan, TIER_HOST)),
               size_mib(budget->bytes[TIER_HOST]));
    }
    printf(" (%.3g %% headroom)\n", headroom);
}

// ---------------------------------------------------------------------------------------------------------------
// Before, during and after the steps

// What runs, where, and how.
static inline void report_banner(const Job *job, const Device *device, const Ranks *ranks) {
    const Config *c = &job->config;
    const ModelShape *s = &c->shape;
    printf("model      %zu layers, %zu channels, %zu heads, vocabulary %zu (padded to %zu), %zu positions: "
           "%zu parameters\n", s->L, s->C, s->NH, s->V, s->Vp, s->maxT, layout_parameters(s));
    char text[512];
    device_describe(device, c->dtype, text, sizeof(text));
    printf("device     %s\n", text);
    printf("threads    %s\n", device->threads_why);
    printf("step       %zu sequences of %zu tokens x %zu micro-batch%s", c->B, c->T, c->micro_batches,
           c->micro_batches > 1 ? "es" : "");
    if (ranks->size > 1) printf(" x %d ranks", ranks->size);
    printf(" = %zu tokens\n", config_tokens(c, ranks->size));
    printf("memory     -r %d on %zu of %zu layers, %s attention, %zu head chunk%s\n", (int)c->recompute,
           c->recompute > 0 ? c->recompute_layers : 0, s->L, c->attention == ATTENTION_PLAIN ? "plain" : "fused",
           c->head_chunks, c->head_chunks > 1 ? "s" : "");
    if (job->data.train.n_tokens > 0) {
        printf("data       %s: %zu tokens in %zu windows\n", job->options.train, job->data.train.n_tokens,
               job->data.train.n_windows);
    } else if (job->data.train_random) {
        printf("data       uniform random tokens\n");
    }
    char offload[128];
    placement_text(&c->place, offload, sizeof(offload));
    if (ranks->size > 1) printf("ranks      %d, ZeRO stage %d\n", ranks->size, c->place.stage);
    if (offload[0]) {
        printf("offload    %s; AdamW on the %s\n", offload, c->place.update_on_host ? "host" : "device");
    }
    if (job->options.zero > 0 && ranks->size == 1) {
        printf("note: -z %lld has nothing to share among one rank; it saves nothing\n", (long long)job->options.zero);
    }
    fflush(stdout);
}

// Where the weights come from, and what differs from the run that left them.
static inline void report_position(const Job *job, const Ranks *ranks) {
    const Config *c = &job->config;
    const CheckpointHeader *p = &job->position;
    if (!c->load) return;
    printf("%s %s (step %lld)\n", c->resume ? "going on from" : "starting with the weights of", job->checkpoint,
           (long long)p->step);
    if (p->dtype != (int64_t)c->dtype) {
        printf("note: it was trained in %s, this run is in %s\n", number_name((Dtype)p->dtype), number_name(c->dtype));
    }
    if (!c->resume) return;
    const uint64_t data = job->data.train_random ? 0 : job->data.train.fingerprint;
    const char *changed = p->seed != c->seed                                                     ? "--seed"
                          : p->data != data                                                      ? "the data"
                          : p->T != (int64_t)c->T                                                ? "-t"
                          : p->tokens_per_step != (int64_t)config_tokens(c, ranks->size)         ? "-d"
                          : p->B != (int64_t)c->B                                                ? "-b"
                                                                                                 : NULL;
    if (changed) printf("note: %s differs from the saved run, so this is not the run it would have been\n", changed);
}

// Says planned and measured bytes of every phase that has occurred for the first time.
static inline void report_phases(Report *report, const Ledger *plan, const Ledger *measured) {
    for (int p = 0; p < PHASES; p++) {
        const PhaseLedger *phase = &measured->phases[p];
        if (!phase->occurred || report->reported[p]) continue;
        report->reported[p] = true;
        printf("phase %-10s planned %9.2f MiB, measured %9.2f MiB; RssAnon %.1f MiB\n", ledger_phase_name(p),
               size_mib(plan->phases[p].peak[TIER_DEVICE]), size_mib(phase->peak[TIER_DEVICE]),
               size_mib(process_rss_anonymous()));
    }
}

// The line of a step; on a terminal the next one takes its place.
static inline void report_step(const Report *report, const Config *config, int n_ranks, const Ledger *measured,
                               const StepRow *r, double seconds_left) {
    const PhaseLedger *phases = measured->phases;
    char clipped[32] = "", eta[32] = "";
    if (config->clip > 0 && r->norm > config->clip) {
        snprintf(clipped, sizeof(clipped), " (clipped to %g)", config->clip);
    }
    if (report->terminal) snprintf(eta, sizeof(eta), " | ETA %d:%02d", (int)seconds_left / 60, (int)seconds_left % 60);
    printf("%sstep %lld/%lld | loss %.4f | norm %.3f%s | lr %.2e | %.0f ms | %.0f tokens/s | mfu %.1f %% | MiB forward "
           "%.1f head %.1f backward %.1f update %.1f, RssAnon %.1f%s%s",
           report->terminal ? "\r" : "", (long long)r->step, (long long)config->steps, r->train_loss, r->norm, clipped,
           r->lr, r->ms, r->tokens_per_second, 100.0 * r->mfu, size_mib(phases[PHASE_FORWARD].peak[TIER_DEVICE]),
           size_mib(phases[PHASE_HEAD].peak[TIER_DEVICE]), size_mib(phases[PHASE_BACKWARD].peak[TIER_DEVICE]),
           size_mib(phases[PHASE_UPDATE].peak[TIER_DEVICE]), size_mib(process_rss_anonymous()), eta,
           report->terminal ? "\033[K" : "");
    if (n_ranks > 1) {
        printf(" | sent %.2f MiB, least %.2f", size_mib(r->sent_bytes),
               size_mib(config_least_sent(config, n_ranks)));
    }
    if (placement_uses_disk(&config->place)) {
        printf(" | disk MiB read %.2f written %.2f, least %.2f", size_mib(r->disk_read_bytes),
               size_mib(r->disk_written_bytes), size_mib(config_least_written(config, n_ranks)));
    }
    if (!report->terminal) putchar('\n');
    fflush(stdout);
}

// The last lines: the peak, what the flags saved, what to try next.
static inline void report_end(const Ledger *plan, const Device *device, size_t plain_peak, size_t next_peak,
                              const char *next) {
    const size_t peak = ledger_peak(plan, TIER_DEVICE);
    printf("peak       %.2f MiB on the device (phase %s), %.2f MiB on the host%s", size_mib(peak),
           ledger_phase_name(ledger_peak_phase(plan, TIER_DEVICE)), size_mib(ledger_peak(plan, TIER_HOST)),
           device->real == DEVICE_CUDA ? " (pinned)" : "");
    if (ledger_peak(plan, TIER_DISK)) printf(", %.2f MiB on the disk", size_mib(ledger_peak(plan, TIER_DISK)));
    printf(": planned and measured alike\n");
    if (plain_peak > peak) {
        printf("saved      %.2f MiB by the memory flags (without them: %.2f MiB)\n", size_mib(plain_peak - peak),
               size_mib(plain_peak));
    } else {
        printf("saved      nothing: no memory flag was in use\n");
    }
    printf("next       %s   (device peak %.2f MiB)\n", next, size_mib(next_peak));
}

#endif
