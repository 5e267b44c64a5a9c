/* Helper threads that take part in a caller's job.

   The caller claims pieces itself, one after the other; a helper that wakes in time claims some too. So nobody waits for
   a thread that has not begun. The caller does wait for a helper that the system has stopped in the middle of a piece,
   which is why helpers are asked for only where processors are idle (Python decides that).

   `claim` holds the number of the job and the next piece in one word, so that a helper which comes late claims nothing
   of another job: it reads what the job is, and then its compare-and-swap fails, since the word was closed before any of
   that was changed. */

#include "floor.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#define MOST_HELPERS 63
#define CLOSED UINT32_MAX
#define SPINS 2000 /* some 50 us */
#define HELPER_SPINS 8000 /* a loop finds its helper awake, also one that does a little between two calls */
#define STACK (256 * 1024)
#define IDLE_SECONDS 10 /* after which a helper ends: one slow read of a disk may have started dozens */

#if defined(__x86_64__) || defined(__i386__)
#define RELAX() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define RELAX() __asm__ __volatile__("yield")
#else
#define RELAX() ((void)0)
#endif

static pthread_mutex_t owner = PTHREAD_MUTEX_INITIALIZER; /* held by the caller whose job the helpers have */

static _Atomic uint64_t claim; /* number of the job << 32 | next piece */
static _Atomic(piece_function) job_work;
static _Atomic(const void *) job_data;
static _Atomic uint32_t job_pieces;
static _Atomic uint32_t done;

static pthread_mutex_t bell_lock = PTHREAD_MUTEX_INITIALIZER; /* of what follows */
static _Atomic uint32_t job_number;
static int wanted; /* helpers that may take part in the job of that number, the first ones */
static int started, sleeping;
static struct {
    pthread_cond_t bell;
    int is_asleep;
} helpers[MOST_HELPERS];

static void take_part(uint32_t number) {
    uint64_t seen = atomic_load(&claim);
    for (;;) {
        uint32_t piece = (uint32_t)seen;
        if ((uint32_t)(seen >> 32) != number || piece == CLOSED) return;
        piece_function work = atomic_load(&job_work);
        const void *data = atomic_load(&job_data);
        if (piece >= atomic_load(&job_pieces)) return;
        if (!atomic_compare_exchange_weak(&claim, &seen, seen + 1)) continue;
        work(data, piece);
        atomic_fetch_add(&done, 1);
        seen = atomic_load(&claim);
    }
}

/* The clock that a timed wait compares with; time(2) may be a tick behind it. */
static time_t seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec;
}

static int is_over(time_t end) { return seconds_now() >= end; }

/* Sleep until a job or another helper's end rings, or until a time if that is still to come. Called with `bell_lock`. */
static void sleep_until(int mine, time_t end) {
    struct timespec until = {.tv_sec = end};
    sleeping++;
    helpers[mine].is_asleep = 1;
    if (is_over(end))
        pthread_cond_wait(&helpers[mine].bell, &bell_lock);
    else
        pthread_cond_timedwait(&helpers[mine].bell, &bell_lock, &until);
    helpers[mine].is_asleep = 0;
    sleeping--;
}

/* End the last helper, and have the one before it look whether it is idle, too. Called with `bell_lock`. */
static void end_last(void) {
    pthread_cond_destroy(&helpers[--started].bell);
    if (started && helpers[started - 1].is_asleep) pthread_cond_signal(&helpers[started - 1].bell);
}

static void *helper(void *place) {
    int mine = (int)(intptr_t)place;
    uint32_t seen = 0;
    for (;;) {
        time_t end = seconds_now() + IDLE_SECONDS; /* a clock that is set makes it end earlier or later, no more */
        for (int spin = 0; spin < HELPER_SPINS && atomic_load_explicit(&job_number, memory_order_relaxed) == seen; spin++)
            RELAX();
        pthread_mutex_lock(&bell_lock);
        while (atomic_load(&job_number) == seen || mine >= wanted) {
            seen = atomic_load(&job_number);
            sleep_until(mine, end);
            if (is_over(end) && mine == started - 1 && (atomic_load(&job_number) == seen || mine >= wanted)) {
                end_last();
                pthread_mutex_unlock(&bell_lock);
                return NULL;
            }
        }
        seen = atomic_load(&job_number);
        pthread_mutex_unlock(&bell_lock);
        take_part(seen);
    }
}

/* Have so many helpers, or as many as the system gives. Called with `bell_lock`. */
static void start_helpers(int count) {
    pthread_attr_t attributes;
    sigset_t all, before;
    if (started >= count || pthread_attr_init(&attributes)) return;
    pthread_attr_setstacksize(&attributes, STACK);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for Python's own threads */
    for (pthread_t thread; started < count; started++) {
        pthread_cond_init(&helpers[started].bell, NULL);
        helpers[started].is_asleep = 0;
        if (pthread_create(&thread, &attributes, helper, (void *)(intptr_t)started)) break;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
}

void pool_run(piece_function work, const void *job, int64_t pieces, int threads) {
    int others = threads - 1;
    if (others > pieces - 1) others = (int)(pieces - 1);
    if (others > MOST_HELPERS) others = MOST_HELPERS;
    if (others < 1 || pieces >= CLOSED || pthread_mutex_trylock(&owner)) {
        for (int64_t piece = 0; piece < pieces; piece++) work(job, piece);
        return;
    }
    pthread_mutex_lock(&bell_lock);
    start_helpers(others);
    uint32_t number = atomic_load(&job_number) + 1;
    atomic_store(&claim, (uint64_t)number << 32 | CLOSED);
    atomic_store(&job_work, work);
    atomic_store(&job_data, job);
    atomic_store(&job_pieces, (uint32_t)pieces);
    atomic_store(&done, 0);
    atomic_store(&claim, (uint64_t)number << 32);
    wanted = others;
    atomic_store(&job_number, number);
    for (int one = 0; one < others && one < started; one++)
        if (helpers[one].is_asleep) pthread_cond_signal(&helpers[one].bell);
    pthread_mutex_unlock(&bell_lock);
    take_part(number);
    for (int spin = 0; atomic_load(&done) < (uint32_t)pieces;) {
        if (++spin < SPINS)
            RELAX();
        else if (spin < 2 * SPINS)
            sched_yield(); /* a helper that was stopped may need this processor */
        else
            usleep(20); /* it waits for a disk */
    }
    pthread_mutex_unlock(&owner);
}

int pool_awake(void) {
    pthread_mutex_lock(&bell_lock);
    int awake = started - sleeping;
    pthread_mutex_unlock(&bell_lock);
    return awake;
}

/* A fork waits for the job that runs, so that a child finds the pool at rest; its helpers are the parent's. */

static void before_fork(void) {
    pthread_mutex_lock(&owner);
    pthread_mutex_lock(&bell_lock);
}

static void after_fork_in_parent(void) {
    pthread_mutex_unlock(&bell_lock);
    pthread_mutex_unlock(&owner);
}

static void after_fork_in_child(void) {
    started = sleeping = 0;
    pthread_mutex_init(&bell_lock, NULL);
    pthread_mutex_init(&owner, NULL);
}

static void watch_forks(void) { pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child); }

void pool_init(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
}
