// SPDX-License-Identifier: Apache-2.0
// liburing_calls.cc - a shared liburing's functions by which a ring's entries get to the kernel.
// Programs write the entries themselves (its header does), and liburing makes the system calls in
// its own code, so these are the last places where an entry can be looked at (entries.h). So for a
// ring with a thread of the kernel's (IORING_SETUP_SQPOLL), too: it sees what was submitted only.
#include <linux/io_uring.h>
#include <signal.h>
#include <time.h>

#include <cerrno>

#include "../leaving.h"
#include "../real.h"
#include "entries.h"
#include "family/io_uring.h"
#include "sock/own_family.h"

// struct io_uring of liburing's header, as far as it is looked at; its layout is liburing's ABI.
struct io_uring {
  struct {
    unsigned *head, *tail, *mask, *entries, *flags, *dropped, *array;
    io_uring_sqe* table;
    unsigned first, next;  // those between have not been submitted
    size_t ring_bytes;
    void* ring;
    unsigned pad[4];
  } sq;
  struct {
    unsigned *head, *tail, *mask, *entries, *flags, *overflow;
    void* table;
    size_t ring_bytes;
    void* ring;
    unsigned pad[4];
  } cq;
  unsigned flags;
};
static_assert(offsetof(io_uring, flags) == 192);

using namespace postern;

namespace {

void LookAtPending(const io_uring* ring) {
  if (!RingsMatter()) return;
  const unsigned shift = (ring->flags & IORING_SETUP_SQE128) != 0 ? 1 : 0;
  for (unsigned i = ring->sq.first; i != ring->sq.next; i++)
    RingEntry(&ring->sq.table[(i & *ring->sq.mask) << shift]);
}

// A ring that is used past the functions here.
void Unseen() {
  if (!Follows(g_family, IoUring::kFollow)) return;
  NoteRing(g_family);
  StepAside(kReasonIoUring);
}

// Looked up when it is wanted first (real.h does so at each start): hardly a program has liburing.
template <typename Function>
bool Find(Function*& real, const char* name) {
  if (LoadRelaxed(real) == nullptr)
    StoreRelaxed(real, reinterpret_cast<Function*>(RealSymbol(name)));
  return LoadRelaxed(real) != nullptr;
}

}  // namespace

// A function of liburing's, and what is done before it.
#define PSTN_LIBURING(name, parameters, arguments, before)            \
  extern "C" int name parameters noexcept;                            \
  PSTN_EXPORT int name parameters noexcept {                          \
    static decltype(&::name) real;                                    \
    before;                                                           \
    return Find(real, #name) ? LoadRelaxed(real) arguments : -ENOSYS; \
  }
#define PSTN_SUBMITS(name, parameters, arguments) \
  PSTN_LIBURING(name, parameters, arguments, LookAtPending(ring))

// NOLINTBEGIN(bugprone-macro-parentheses)
PSTN_SUBMITS(io_uring_submit, (io_uring * ring), (ring))
PSTN_SUBMITS(io_uring_submit_and_wait, (io_uring * ring, unsigned wait), (ring, wait))
PSTN_SUBMITS(io_uring_submit_and_get_events, (io_uring * ring), (ring))
PSTN_SUBMITS(io_uring_submit_and_wait_timeout,
             (io_uring * ring, void** done, unsigned wait, void* time, sigset_t* mask),
             (ring, done, wait, time, mask))
PSTN_SUBMITS(io_uring_submit_and_wait_min_timeout,
             (io_uring * ring, void** done, unsigned wait, void* time, unsigned min_usec,
              sigset_t* mask),
             (ring, done, wait, time, min_usec, mask))
PSTN_SUBMITS(io_uring_submit_and_wait_reg, (io_uring * ring, void** done, unsigned wait, int index),
             (ring, done, wait, index))
PSTN_SUBMITS(io_uring_wait_cqes,
             (io_uring * ring, void** done, unsigned wait, void* time, sigset_t* mask),
             (ring, done, wait, time, mask))
PSTN_SUBMITS(io_uring_wait_cqes_min_timeout,
             (io_uring * ring, void** done, unsigned wait, void* time, unsigned min_usec,
              sigset_t* mask),
             (ring, done, wait, time, min_usec, mask))
PSTN_SUBMITS(io_uring_wait_cqe_timeout, (io_uring * ring, void** done, void* time),
             (ring, done, time))

PSTN_LIBURING(io_uring_register_files, (io_uring * ring, const int* fds, unsigned count),
              (ring, fds, count), RingRegister(IORING_REGISTER_FILES, fds, count))
PSTN_LIBURING(io_uring_register_files_tags,
              (io_uring * ring, const int* fds, const uint64_t* tags, unsigned count),
              (ring, fds, tags, count), RingRegister(IORING_REGISTER_FILES, fds, count))
PSTN_LIBURING(io_uring_register_files_update,
              (io_uring * ring, unsigned from, const int* fds, unsigned count),
              (ring, from, fds, count), RingRegister(IORING_REGISTER_FILES, fds, count))
PSTN_LIBURING(io_uring_register_files_update_tag,
              (io_uring * ring, unsigned from, const int* fds, const uint64_t* tags,
               unsigned count),
              (ring, from, fds, tags, count), RingRegister(IORING_REGISTER_FILES, fds, count))
PSTN_LIBURING(io_uring_register, (unsigned ring, unsigned op, const void* arg, unsigned count),
              (ring, op, arg, count), RingRegister(op, arg, count))

PSTN_LIBURING(io_uring_setup, (unsigned entries, io_uring_params* params), (entries, params),
              Unseen())
PSTN_LIBURING(io_uring_enter,
              (unsigned ring, unsigned submit, unsigned wait, unsigned flags, sigset_t* mask),
              (ring, submit, wait, flags, mask), Unseen())
PSTN_LIBURING(io_uring_enter2,
              (unsigned ring, unsigned submit, unsigned wait, unsigned flags, sigset_t* mask,
               size_t bytes),
              (ring, submit, wait, flags, mask, bytes), Unseen())
// NOLINTEND(bugprone-macro-parentheses)
