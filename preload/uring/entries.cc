// SPDX-License-Identifier: Apache-2.0
// entries.cc - see entries.h.
#include "entries.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <initializer_list>

#include "../leaving.h"
#include "../real.h"
#include "base/atomic.h"
#include "base/sys.h"
#include "family/family.h"
#include "family/fdtab.h"
#include "family/io_uring.h"
#include "peer/export.h"
#include "sock/own_family.h"

namespace postern {
namespace {

// Of newer kernels' interfaces (include/uapi/linux/io_uring.h).
constexpr uint32_t kNoSqArray = 1u << 16;  // IORING_SETUP_NO_SQARRAY, Linux 6.6
constexpr uint32_t kHybridIoPoll = 1u << 17, kCqeMixed = 1u << 18;
constexpr uint8_t kOpSocket = 45, kOpWaitid = 50, kOpFutexWait = 51, kOpFutexWaitv = 53;
constexpr uint8_t kOpPipe = 62;
constexpr unsigned kEnterRegisteredRing = 1u << 4, kRegisterByIndex = 1u << 31;
constexpr unsigned kRegisterResizeRings = 33;

// With these the entries are where RingEnter looks for them, when it does.
constexpr uint32_t kFollowed = IORING_SETUP_IOPOLL | IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP |
                               IORING_SETUP_ATTACH_WQ | IORING_SETUP_R_DISABLED |
                               IORING_SETUP_SUBMIT_ALL | IORING_SETUP_COOP_TASKRUN |
                               IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_SQE128 |
                               IORING_SETUP_CQE32 | IORING_SETUP_SINGLE_ISSUER |
                               IORING_SETUP_DEFER_TASKRUN | kNoSqArray | kHybridIoPoll | kCqeMixed;

// Where a ring has its entries. The program may close the ring and get the number for something
// else: then it can't be mapped, and nothing is looked at. It is mapped for the length of a look,
// since a mapping keeps a ring alive.
struct Shape {
  uint32_t ring;  // (a) its number and 1; 0: free
  uint32_t flags, entries;
  io_sqring_offsets off;
};
constexpr size_t kRings = 64;
Shape shapes[kRings];

Shape* ShapeOf(int ring) {
  for (Shape& shape : shapes) {
    if (LoadAcquire(shape.ring) == static_cast<uint32_t>(ring) + 1) return &shape;  // [T8]
  }
  return nullptr;
}

// False: it can't be followed.
bool Remember(int ring, const io_uring_params& made) {
  if ((made.flags & ~kFollowed) != 0) return false;
  Shape* shape = ShapeOf(ring);
  for (size_t i = 0; shape == nullptr && i < kRings; i++) {
    uint32_t free = 0;
    // Not a number yet, as numbers are not negative.
    if (CompareExchange(shapes[i].ring, free, UINT32_MAX)) shape = &shapes[i];
  }
  if (shape == nullptr) return false;
  shape->flags = made.flags;
  shape->entries = made.sq_entries;
  shape->off = made.sq_off;
  StoreRelease(shape->ring, static_cast<uint32_t>(ring) + 1);  // [T8]
  return true;
}

// Memory of a ring's, for the length of a look.
class Mapped {
 public:
  Mapped(int ring, size_t bytes, uint64_t what) : bytes_(bytes) {
    const long at = sys::Call6(SYS_mmap, 0, static_cast<long>(bytes), PROT_READ | PROT_WRITE,
                               MAP_SHARED | MAP_POPULATE, ring, static_cast<long>(what));
    at_ = at < 0 && at > -4096 ? nullptr : reinterpret_cast<uint8_t*>(at);
  }
  ~Mapped() {
    if (at_ != nullptr) sys::Call(SYS_munmap, at_, bytes_);
  }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;
  bool ok() const { return at_ != nullptr; }
  uint8_t* at(size_t off) const { return at_ + off; }
  uint32_t* word(size_t off) const { return reinterpret_cast<uint32_t*>(at_ + off); }

 private:
  size_t bytes_;
  uint8_t* at_;
};

void LeaveToRing() {
  NoteRing(g_family);
  StepAside(kReasonIoUring);
}

// A descriptor that an entry, or a registration, names. -1, or what it is to be in its place: the
// program has closed that number, and the library keeps it.
int Named(int fd) {
  if (fd < 0) return fd;
  if (IsHidden(FdMeans(g_family, fd))) return -1;
  if (!KernelKnows(g_family, fd)) LeaveToRing();
  return fd;
}

// An event set of the kernel's and a member of it: to add that again is EEXIST.
struct Twice {
  int set, member;
};
Twice MemberTwice() {
  static const Twice made = [] {
    Twice t = {static_cast<int>(sys::Call(SYS_epoll_create1, static_cast<long>(EPOLL_CLOEXEC))),
               static_cast<int>(sys::Call(SYS_eventfd2, 0L, static_cast<long>(EFD_CLOEXEC)))};
    if (t.set >= 0) t.set = MoveHigh(g_family, t.set);
    if (t.member >= 0) t.member = MoveHigh(g_family, t.member);
    epoll_event none = {};
    sys::Call(SYS_epoll_ctl, t.set, static_cast<long>(EPOLL_CTL_ADD), t.member, &none);
    return t;
  }();
  return made;
}

// Done here; the kernel gets an entry that has the same result.
void ServeEpollCtl(io_uring_sqe* entry) {
  const int set = entry->fd, fd = static_cast<int>(entry->off);
  if (FdMeans(g_family, set) == 0 && FdMeans(g_family, fd) == 0) return;
  const int saved = errno;
  const int r =
      epoll_ctl(set, static_cast<int>(entry->len), fd, reinterpret_cast<epoll_event*>(entry->addr));
  const int error = r < 0 ? errno : 0;
  errno = saved;
  if (error == 0) {
    const auto flags = entry->flags;
    const auto user_data = entry->user_data;
    *entry = {};
    entry->opcode = IORING_OP_NOP;
    entry->flags = flags;
    entry->fd = -1;
    entry->user_data = user_data;
  } else if (error == EEXIST) {
    const Twice twice = MemberTwice();
    entry->fd = twice.set;
    entry->off = static_cast<decltype(entry->off)>(twice.member);
  } else if (error == EBADF) {
    entry->fd = -1;
  }  // what is not in our set is not in the kernel's either; nor does the rest differ
}

void NamedIn(const void* numbers, unsigned count) {
  for (unsigned i = 0; numbers != nullptr && i < count; i++)
    (void)Named(static_cast<const int*>(numbers)[i]);
}

// What io_uring_register with IORING_REGISTER_FILES_UPDATE, FILES2 and FILES_UPDATE2 points to.
struct FilesUpdate {
  uint32_t offset, resv;
  uint64_t numbers;
};
struct Files2 {
  uint32_t count, flags;
  uint64_t resv, numbers, tags;
};
struct FilesUpdate2 {
  uint32_t offset, resv;
  uint64_t numbers, tags;
  uint32_t count, resv2;
};

const void* At(uint64_t address) { return reinterpret_cast<const void*>(address); }

}  // namespace

bool RingsMatter() { return g_family.attached && Follows(g_family, IoUring::kFollow); }

void RingEntry(io_uring_sqe* entry) {
  switch (entry->opcode) {
    case IORING_OP_NOP:
    case IORING_OP_TIMEOUT:
    case IORING_OP_TIMEOUT_REMOVE:
    case IORING_OP_LINK_TIMEOUT:
    case IORING_OP_POLL_REMOVE:
    case IORING_OP_ASYNC_CANCEL:
    case IORING_OP_MADVISE:
    case IORING_OP_PROVIDE_BUFFERS:  // `fd` is a number of buffers
    case IORING_OP_REMOVE_BUFFERS:
    case kOpFutexWait ... kOpFutexWaitv:  // flags
    case kOpSocket:                       // its domain
    case kOpWaitid:                       // a process
    case kOpPipe:                         // nothing
      return;
    case IORING_OP_EPOLL_CTL:
      ServeEpollCtl(entry);
      return;
    case IORING_OP_FILES_UPDATE:
      NamedIn(At(entry->addr), entry->len);
      return;
    case IORING_OP_SPLICE:
    case IORING_OP_TEE:
      if ((entry->splice_flags & SPLICE_F_FD_IN_FIXED) == 0)
        entry->splice_fd_in = Named(entry->splice_fd_in);
      break;
    case IORING_OP_SENDMSG:
    case IORING_OP_SENDMSG_ZC: {
      const int by = (entry->flags & IOSQE_FIXED_FILE) == 0 ? entry->fd : kAnySocket;
      if (entry->addr != 0 && (by == kAnySocket || FdMeans(g_family, by) == 0))
        (void)ExportPassed(by, static_cast<const msghdr*>(At(entry->addr)));
      break;
    }
    default:
      break;
  }
  if ((entry->flags & IOSQE_FIXED_FILE) == 0) entry->fd = Named(entry->fd);
}

long RingSetup(unsigned entries, io_uring_params* params) {
  if (Follows(g_family, IoUring::kDeny)) {
    NoteRing(g_family);
    return -EPERM;
  }
  const Fresh fresh;
  const long ring = sys::Call(SYS_io_uring_setup, static_cast<long>(entries), params);
  if (ring < 0) return ring;
  (void)fresh.Fd(static_cast<int>(ring));
  if (Follows(g_family, IoUring::kFollow) && !Remember(static_cast<int>(ring), *params))
    LeaveToRing();
  return ring;
}

void RingEnter(int ring, unsigned to_submit, unsigned flags) {
  if (to_submit == 0 || !RingsMatter()) return;
  const Shape* const shape = (flags & kEnterRegisteredRing) == 0 ? ShapeOf(ring) : nullptr;
  if (shape == nullptr) {  // one that was made unseen
    LeaveToRing();
    return;
  }
  const io_sqring_offsets& off = shape->off;
  const bool direct = (shape->flags & kNoSqArray) != 0;
  size_t end = std::max({off.head, off.tail, off.ring_mask}) + sizeof(uint32_t);
  if (!direct) end = std::max(end, off.array + shape->entries * sizeof(uint32_t));
  const size_t stride = sizeof(io_uring_sqe) << ((shape->flags & IORING_SETUP_SQE128) != 0 ? 1 : 0);
  const Mapped queue(ring, end, IORING_OFF_SQ_RING);
  const Mapped table(ring, shape->entries * stride, IORING_OFF_SQES);
  if (!queue.ok() || !table.ok()) return;
  const uint32_t head = LoadAcquire(*queue.word(off.head));  // [T9]
  const uint32_t tail = LoadAcquire(*queue.word(off.tail));  // [T9]
  const uint32_t count = std::min(tail - head, to_submit);
  for (uint32_t i = 0; i < count && i < shape->entries; i++) {
    const uint32_t at = (head + i) & (shape->entries - 1);
    const uint32_t index = direct ? at : queue.word(off.array)[at];
    if (index < shape->entries)
      RingEntry(reinterpret_cast<io_uring_sqe*>(table.at(index * stride)));
  }
}

void RingRegister(unsigned op, const void* arg, unsigned count) {
  if (arg == nullptr || !RingsMatter()) return;
  switch (op & ~kRegisterByIndex) {
    case IORING_REGISTER_FILES:
      NamedIn(arg, count);
      break;
    case IORING_REGISTER_FILES_UPDATE:
      NamedIn(At(static_cast<const FilesUpdate*>(arg)->numbers), count);
      break;
    case IORING_REGISTER_FILES2: {
      const auto* files = static_cast<const Files2*>(arg);
      NamedIn(At(files->numbers), files->count);
      break;
    }
    case IORING_REGISTER_FILES_UPDATE2: {
      const auto* files = static_cast<const FilesUpdate2*>(arg);
      NamedIn(At(files->numbers), files->count);
      break;
    }
    case kRegisterResizeRings:  // the entries move
      LeaveToRing();
      break;
    default:
      break;
  }
}

}  // namespace postern
