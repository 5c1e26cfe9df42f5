// threads.h - the team of OpenMP threads that computes on the CPU: how many, that they can be had, and that they stay.
//
// The math library's primitives are made for a number of threads: with a smaller team, parts of a product would stay as
// they were. So the number is what a parallel region really has, found before the first primitive and checked again at
// every step.
//
//     processors = those that this process may run on, shared with the ranks that may run on them, too
//     threads    = OMP_NUM_THREADS, or min(processors, control group's quota of processor time, rounded up)
//                  or fewer, if OpenMP gives fewer (OMP_THREAD_LIMIT, ...)
//
// Threads that wait for each other spin for a moment, then sleep. OpenMP's own moment is so long (milliseconds) that
// beside another busy program, or within a quota, the spinning takes the time that the others need to arrive.
#ifndef THREADS_H
#define THREADS_H

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "process.h"

// The most threads, and what each needs of its stack, bytes: several times what the deepest of our functions and of the
// math library's use (frames of 25 KiB, gcc -fstack-usage; a run of oneDNN lives with 32 KiB).
enum { THREADS_MOST = 4096, THREADS_STACK = 256 << 10 };
// How often a waiting thread looks before it sleeps, in turns of libgomp's loop; see dev/PERFORMANCE.md.
#define THREADS_SPIN "500"

// How many threads a parallel region has.
static inline int threads_team(void) {
    int n = 1;
#ifdef _OPENMP
#pragma omp parallel
    {
#pragma omp master
        n = omp_get_num_threads();
    }
#endif
    return n;
}

// ---------------------------------------------------------------------------------------------------------------
// Waiting

// The first of these variables (NULL ends them) that is set, as "NAME=VALUE" in `text` (size); "" if none is.
static inline const char *threads_setting(const char *const *names, char *text, size_t size) {
    text[0] = 0;
    for (; *names && !text[0]; names++) {
        if (getenv(*names)) snprintf(text, size, "%s=%s", *names, getenv(*names));
    }
    return text;
}

static const char *const THREADS_WAIT[] = {"GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_WAIT_POLICY", NULL};

// The first call of a program. OpenMP reads how threads wait before main(), so the program starts itself again with the
// setting, unless the user has made it, or binds threads to processors: OpenMP has then bound this one already, and the
// program would find itself on a part of the machine. Does nothing where it can't be done.
static inline void threads_give_way(char **argv) {
#ifdef _OPENMP
    static const char *const bound[] = {"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY", NULL};
    char text[128];
    if (threads_setting(THREADS_WAIT, text, sizeof(text))[0] || threads_setting(bound, text, sizeof(text))[0]) return;
    if (setenv("GOMP_SPINCOUNT", THREADS_SPIN, 0) != 0) return;
    execv("/proc/self/exe", argv);
    unsetenv("GOMP_SPINCOUNT");  // it was not read
#else
    (void)argv;
#endif
}

// ---------------------------------------------------------------------------------------------------------------
// Whether the threads can be had

#ifdef _OPENMP
// Touches so much of the stack below here, from the top.
static inline void threads_touch_stack(void) {
    char stack[THREADS_STACK];
    volatile char *bytes = stack;
    for (size_t i = THREADS_STACK; i > 0; i -= 1024) bytes[i - 1] = 0;
}

// The child's half: OpenMP's words go to `words` (a pipe), and a zero byte behind them if all went well.
static inline void threads_try_child(int n, int words) {
    struct rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    signal(SIGSEGV, SIG_DFL);
    alarm(60);
    dup2(words, STDERR_FILENO);
#pragma omp parallel num_threads(n)
    threads_touch_stack();
    _exit(write(words, "", 1) == 1 ? 0 : 1);
}

// Settings and limits that may be why threads can't be had, those that are set, as "A=1, B=2".
static inline void threads_limits(char *text, size_t size) {
    static const char *const names[] = {"OMP_NUM_THREADS", "OMP_STACKSIZE", "GOMP_STACKSIZE"};
    static const struct {
        __rlimit_resource_t resource;
        const char *name;
        rlim_t unit;
    } limits[] = {{RLIMIT_STACK, "ulimit -s", 1024}, {RLIMIT_NPROC, "ulimit -u", 1}, {RLIMIT_AS, "ulimit -v", 1024}};
    size_t n = 0;
    text[0] = 0;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && n < size; i++) {
        const char *value = getenv(names[i]);
        if (value) n += (size_t)snprintf(text + n, size - n, "%s%s=%s", n ? ", " : "", names[i], value);
    }
    for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]) && n < size; i++) {
        struct rlimit limit;
        if (getrlimit(limits[i].resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) continue;
        n += (size_t)snprintf(text + n, size - n, "%s%s %llu", n ? ", " : "", limits[i].name,
                              (unsigned long long)(limit.rlim_cur / limits[i].unit));
    }
}

// A child process starts a team of n and uses as much of every stack as a run may: what OpenMP or the kernel would end
// the run for later ends the child. Dies with one message.
static inline void threads_try(int n) {
    int ends[2], status = 0;
    char words[512], limits[512];
    size_t length = 0;
    threads_limits(limits, sizeof(limits));
    fflush(NULL);
    if (pipe(ends) != 0) die("can't open a pipe: %s", error_text());
    const pid_t child = fork();
    if (child < 0) {
        die("can't start a process to try %d threads in: %s. Raise the limits on processes (set here: %s; or a control "
            "group's)", n, error_text(), limits);
    }
    if (child == 0) threads_try_child(n, ends[1]);
    close(ends[1]);
    while (length < sizeof(words)) {
        const ssize_t got = read(ends[0], words + length, sizeof(words) - length);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        length += (size_t)got;
    }
    close(ends[0]);
    pid_t ended;
    do ended = waitpid(child, &status, 0);
    while (ended < 0 && errno == EINTR);
    if (length > 0 && words[length - 1] == 0) return;
    while (length > 0 && isspace((unsigned char)words[length - 1])) length--;
    size_t first = 0;
    while (first < length && isspace((unsigned char)words[first])) first++;
    for (size_t i = first; i < length; i++) words[i] = words[i] == '\n' ? ' ' : words[i];
    if (length == 0 && !(ended == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)) {
        die("a thread's stack is too small: %d KiB are needed. Raise it (set here: %s)", THREADS_STACK >> 10, limits);
    }
    if (length == 0) {
        die("%d threads did not start within a minute. Take fewer (OMP_NUM_THREADS), or a less busy machine", n);
    }
    die("%d threads can't be had: %.*s. Take fewer (OMP_NUM_THREADS), or raise the limits (set here: %s; or a control "
        "group's)", n, (int)(length - first), words + first, limits);
}
#endif

// ---------------------------------------------------------------------------------------------------------------
// The team

// OMP_NUM_THREADS, if it is a number: what OpenMP has made of it; otherwise 0.
static inline int threads_asked(void) {
#ifdef _OPENMP
    const char *text = getenv("OMP_NUM_THREADS");
    if (text && strtol(text, NULL, 10) > 0) return omp_get_max_threads();
#endif
    return 0;
}

// Processors that this process may run on. OpenMP may have bound this thread to one of its places.
static inline int threads_processors(void) {
    int n = 0;
#ifdef _OPENMP
    for (int place = 0; place < omp_get_num_places(); place++) n += omp_get_place_num_procs(place);
    if (n == 0) n = omp_get_num_procs();
#endif
    return n > 0 ? n : 1;
}

// Adds words to a text of `size` bytes that ends at *length.
PRINTF_LIKE(4, 5)
static inline void threads_say(char *text, size_t size, size_t *length, const char *format, ...) {
    va_list words;
    va_start(words, format);
    const int n = vsnprintf(text + *length, size - *length, format, words);
    va_end(words);
    if (n > 0) *length = size_min(*length + (size_t)n, size - 1);
}

// Settles the team: returns its number of threads, and in `why` (size) a line for the banner. share: this rank's part of
// the processors that it may run on, at most 1; local_size: ranks on this machine, which share the control group's
// quota. Dies if the threads can't be had.
static inline int threads_open(double share, int local_size, char *why, size_t size) {
#ifdef _OPENMP
    static bool tried = false;  // a process tries once: OpenMP does not survive a fork once it has threads
    const int processors = threads_processors(), asked = threads_asked();
    const double quota = process_quota(""), here = processors * share;
    const bool limited = quota > 0 && ceil(quota / local_size) < here;
    const int chosen = asked ? asked : limited ? (int)ceil(quota / local_size) : here < 1 ? 1 : (int)(here + 1e-6);
    if (chosen > THREADS_MOST) die("OMP_NUM_THREADS=%d: at most %d threads", chosen, THREADS_MOST);
    omp_set_dynamic(0);
    if (!tried) threads_try(chosen);
    tried = true;
    omp_set_num_threads(chosen);
    const int team = threads_team();
    omp_set_num_threads(team);

    static const char *const fewer[] = {"OMP_THREAD_LIMIT", "OMP_MAX_ACTIVE_LEVELS", NULL};
    char setting[128];
    size_t n = 0;
    threads_say(why, size, &n, "%d: ", team);
    if (team < chosen) {
        threads_setting(fewer, setting, sizeof(setting));
        threads_say(why, size, &n, "OpenMP gives no more%s%s", setting[0] ? ", " : "", setting);
    } else if (asked) {
        threads_say(why, size, &n, "OMP_NUM_THREADS");
    } else if (limited) {
        threads_say(why, size, &n, "the control group's quota is %.2f processors", quota);
    } else {
        threads_say(why, size, &n, "one for each processor that it may use");
    }
    if (local_size > 1 && !asked) threads_say(why, size, &n, ", shared by %d ranks", local_size);
    if (team != processors) threads_say(why, size, &n, "; %d processor%s", processors, processors > 1 ? "s" : "");
    threads_setting(THREADS_WAIT, setting, sizeof(setting));
    if (team > 1) threads_say(why, size, &n, "; waiting by %s", setting[0] ? setting : "OpenMP's default");
    return team;
#else
    (void)share;
    (void)local_size;
    snprintf(why, size, "1: built without OpenMP");
    return 1;
#endif
}

// Dies if a parallel region has another number of threads than threads_open() found.
static inline void threads_check(int threads) {
    const int team = threads_team();
    if (team == threads) return;
    die("the run began with %d thread%s and OpenMP gives %d now: products made for the one are wrong with the other. "
        "Something in this process changes OpenMP's settings; go on from the last checkpoint", threads,
        threads > 1 ? "s" : "", team);
}

#endif
