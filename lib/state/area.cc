// SPDX-License-Identifier: Apache-2.0
// area.cc - see area.h.
#include "state/area.h"

#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <initializer_list>
#include <new>  // tidy-allow: of placement new
#include <type_traits>

#include "base/space/room.h"
#include "base/sys.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace postern {
namespace {

constexpr unsigned kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

int CreateSegment(const char* name, size_t bytes) {
  if (FileRoom() < bytes) return -27;  // EFBIG, before ftruncate() makes a signal of it
  long fd = sys::MakeOurs([name] {
    return sys::Call(SYS_memfd_create, name, static_cast<long>(MFD_CLOEXEC | MFD_ALLOW_SEALING));
  });
  if (fd < 0) return static_cast<int>(fd);
  int f = static_cast<int>(fd);
  long r = sys::Call(SYS_ftruncate, f, bytes);
  if (r == 0) r = sys::Fcntl(f, F_ADD_SEALS, kSeals);
  if (r == 0) return f;
  sys::Close(f);
  return static_cast<int>(r);
}

// Whether each process that gets it can map it to write, and no one can change that. One that can't
// would ask for it again and again.
bool IsWritable(int fd) {
  const int mode = sys::Fcntl(fd, F_GETFL, 0), seals = sys::Fcntl(fd, F_GET_SEALS, 0);
  constexpr auto kNoWrite = static_cast<unsigned>(F_SEAL_WRITE | F_SEAL_FUTURE_WRITE);
  return mode >= 0 && (mode & O_ACCMODE) == O_RDWR && seals >= 0 &&
         (static_cast<unsigned>(seals) & (kSeals | kNoWrite)) == kSeals;
}

// Memory of huge pages can be sealed, too; a hole in it is a SIGBUS when none is free.
bool IsPlainMemfd(int fd) {
  struct statfs fs;
  return sys::Call(SYS_fstatfs, fd, &fs) == 0 && fs.f_type == TMPFS_MAGIC;
}

uint64_t Random64() {
  uint64_t v = 0;
  if (sys::Call(SYS_getrandom, &v, sizeof v, 0L) != static_cast<long>(sizeof v)) {
    timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    v = static_cast<uint64_t>(ts.tv_nsec) * 0x9e3779b97f4a7c15u ^ static_cast<uint64_t>(sys::Tid());
  }
  return v;
}

}  // namespace

// Seals come first: memory alone has them. And nothing here waits for a lock that others who have
// the descriptor can hold as long as they like: lseek() waits for a read() of theirs, fallocate()
// for a write().
size_t SegmentBytes(int fd) {
  int seals = sys::Fcntl(fd, F_GET_SEALS, 0);
  if (seals < 0 || (seals & (F_SEAL_SHRINK | F_SEAL_GROW)) != (F_SEAL_SHRINK | F_SEAL_GROW)) {
    return 0;
  }
  struct stat st;
  if (sys::Call(SYS_fstat, fd, &st) != 0 || st.st_size < 0 || !IsPlainMemfd(fd)) return 0;
  return static_cast<size_t>(st.st_size);
}

pstn_uuid NewUuid() {
  pstn_uuid id = {Random64(), Random64()};
  id.hi = (id.hi & ~0xf000ull) | 0x4000u;                           // RFC 9562: version 4,
  id.lo = (id.lo & 0x3fffffffffffffffull) | 0x8000000000000000ull;  // variant 10
  return id;
}

int CreateStack(const pstn_uuid& id, const StackSizes& sizes) {
  const pstn_stack_counts counts = CountsOf(sizes);
  StackLayout layout;
  if (!LayOut(counts, layout)) return -22;  // EINVAL
  int fd = CreateSegment("postern-stack", layout.bytes);
  if (fd < 0) return fd;
  void* const head = sys::MapShared(fd, sizeof(pstn_stack_hdr), PROT_READ | PROT_WRITE);
  if (head == nullptr) {
    sys::Close(fd);
    return -12;  // ENOMEM
  }
  pstn_stack_hdr& hdr = *static_cast<pstn_stack_hdr*>(head);
  hdr.magic = PSTN_MAGIC_STACK;
  hdr.abi_version = PSTN_ABI_VERSION;
  hdr.size_bytes = layout.bytes;
  hdr.counts = counts;
  hdr.id = id;
  hdr.uid = static_cast<uint32_t>(sys::Call(SYS_geteuid));
  timespec ts;
  clock_gettime(CLOCK_REALTIME, &ts);
  hdr.created_ns =
      static_cast<uint64_t>(ts.tv_sec) * 1000000000u + static_cast<uint64_t>(ts.tv_nsec);
  for (pstn_pool* p : {&hdr.eps, &hdr.items, &hdr.fdchunks, &hdr.epolls, &hdr.waiters}) {
    p->head = PSTN_NONE;
  }
  hdr.waiters.hw = PSTN_EVMAP_WIRE + 1;  // before it are those of SYNs and of the engine
  sys::Unmap(head, sizeof(pstn_stack_hdr));
  return fd;
}

int CreateLgr(const pstn_uuid& id, const pstn_uuid& client, const pstn_uuid& server) {
  int fd = CreateSegment("postern-lgr", PSTN_LGR_BYTES);
  if (fd < 0) return fd;
  auto* h = static_cast<pstn_lgr_hdr*>(sys::MapShared(fd, 4096, PROT_READ | PROT_WRITE));
  if (h == nullptr) {
    sys::Close(fd);
    return -12;
  }
  h->magic = PSTN_MAGIC_LGR;
  h->abi_version = PSTN_ABI_VERSION;
  h->size_bytes = PSTN_LGR_BYTES;
  h->id = id;
  h->stack[0] = client;
  h->stack[1] = server;
  h->waiters_hw[0] = h->waiters_hw[1] = 1;
  sys::Unmap(h, 4096);
  return fd;
}

int CreateQueues() { return CreateSegment("postern-queues", sizeof(pstn_queues)); }

namespace {

bool IsSegment(int fd, size_t bytes) { return SegmentBytes(fd) == bytes; }

void* MapChecked(int fd, size_t bytes, int prot) {
  return IsSegment(fd, bytes) ? sys::MapShared(fd, bytes, prot) : nullptr;
}

// A map, in a page that this process itself only reads; and how far it reaches, in the next one.
constexpr size_t kStackOwnPage = 4096, kStackOwnBytes = 2 * kStackOwnPage;
static_assert(sizeof(StackMap) <= kStackOwnPage && sizeof(StackLook) <= kStackOwnPage);

// The header's constant part is copied, and the copy alone is looked at.
template <typename Map>
Map* StackWith(int fd) {
  struct {
    uint32_t magic, abi_version;
    uint64_t size_bytes;
  } head;  // the whole header is more than a small stack has room for
  pstn_stack_counts counts;
  const auto read = [fd](auto& to, size_t at) {
    return sys::Call(SYS_pread64, fd, &to, sizeof to, static_cast<long>(at)) ==
           static_cast<long>(sizeof to);
  };
  static_assert(offsetof(pstn_stack_hdr, size_bytes) == 8);
  StackLayout layout;
  if (SegmentBytes(fd) == 0 || !read(head, 0) || !read(counts, offsetof(pstn_stack_hdr, counts)) ||
      head.magic != PSTN_MAGIC_STACK || head.abi_version != PSTN_ABI_VERSION ||
      !LayOut(counts, layout) || head.size_bytes != layout.bytes)
    return nullptr;
  auto* const own = static_cast<uint8_t*>(sys::MapPrivate(kStackOwnBytes));
  if (own == nullptr) return nullptr;
  auto& reach = *new (own + kStackOwnPage) StackReach{};
  uint8_t* base = nullptr;
  constexpr int kProt = std::is_same_v<Map, StackMap> ? PROT_READ | PROT_WRITE : PROT_READ;
  if (IsSegment(fd, layout.bytes)) base = MapStackTables(fd, kProt, counts, layout, reach);
  if (base == nullptr) {
    sys::Unmap(own, kStackOwnBytes);
    return nullptr;
  }
  Map* const map = new (own) Map(base, counts, layout, reach);
  (void)sys::Call(SYS_mprotect, own, kStackOwnPage, static_cast<long>(PROT_READ));
  return map;
}

template <typename Map>
void UnmapWhole(const Map* stack) {
  auto* const base = reinterpret_cast<uint8_t*>(const_cast<pstn_stack_hdr*>(&stack->hdr));
  for (uint32_t i = 0; i < kStackParts; i++) {
    const StackPart part = stack->Part(i);
    sys::Unmap(base + part.off, part.bytes);
  }
  sys::Unmap(const_cast<Map*>(stack), kStackOwnBytes);
}

}  // namespace

StackMap* MapStack(int fd) { return StackWith<StackMap>(fd); }
const StackLook* LookAtStack(int fd) { return StackWith<StackLook>(fd); }

uint8_t* MapKnownLgr(int fd) { return IsSegment(fd, PSTN_LGR_BYTES) ? MapTables(fd) : nullptr; }

uint8_t* MapLgr(int fd, const pstn_uuid* expected_id) {
  uint8_t* const base = MapKnownLgr(fd);
  if (base == nullptr) return nullptr;
  auto* h = reinterpret_cast<pstn_lgr_hdr*>(base);
  if (h->magic == PSTN_MAGIC_LGR && h->abi_version == PSTN_ABI_VERSION &&
      (expected_id == nullptr || SameUuid(h->id, *expected_id))) {
    return base;
  }
  UnmapLgr(base);
  return nullptr;
}

bool OwnersOfLgr(int fd, const pstn_uuid& id, pstn_uuid (&owner)[2]) {
  pstn_lgr_hdr h;
  if (!IsSegment(fd, PSTN_LGR_BYTES) || !IsWritable(fd) ||
      sys::Call(SYS_pread64, fd, &h, sizeof h, 0L) != static_cast<long>(sizeof h) ||
      h.magic != PSTN_MAGIC_LGR || h.abi_version != PSTN_ABI_VERSION || !SameUuid(h.id, id))
    return false;
  owner[0] = h.stack[0];
  owner[1] = h.stack[1];
  return true;
}

uint32_t ConnsOfLgr(int fd) {
  uint32_t conns = 0;
  long r = sys::Call(SYS_pread64, fd, &conns, sizeof conns,
                     static_cast<long>(offsetof(pstn_lgr_hdr, conns_hw)));
  if (r != static_cast<long>(sizeof conns)) return 0;
  return conns < PSTN_CONNS ? conns : PSTN_CONNS;
}

const pstn_dir* MapDir(int fd) {
  auto* d = static_cast<const pstn_dir*>(MapChecked(fd, sizeof(pstn_dir), PROT_READ));
  if (d == nullptr) return nullptr;
  if (d->magic == PSTN_MAGIC_DIR && d->abi_version == PSTN_ABI_VERSION) return d;
  UnmapDir(d);
  return nullptr;
}

// Nothing in it says what it is: all who have it write there.
pstn_queues* MapQueues(int fd) {
  return static_cast<pstn_queues*>(MapChecked(fd, sizeof(pstn_queues), PROT_READ | PROT_WRITE));
}

const pstn_routes* MapRoutes(int fd) {
  auto* r = static_cast<const pstn_routes*>(MapChecked(fd, sizeof(pstn_routes), PROT_READ));
  if (r == nullptr) return nullptr;
  if (r->magic == PSTN_MAGIC_ROUTES && r->version == PSTN_ROUTES_VERSION) return r;
  UnmapRoutes(r);
  return nullptr;
}

void UnmapStack(const StackMap* stack) { UnmapWhole(stack); }
void UnmapStack(const StackLook* stack) { UnmapWhole(stack); }
void UnmapDir(const pstn_dir* dir) { sys::Unmap(const_cast<pstn_dir*>(dir), sizeof(pstn_dir)); }
void UnmapQueues(pstn_queues* queues) { sys::Unmap(queues, sizeof(pstn_queues)); }
void UnmapRoutes(const pstn_routes* routes) {
  sys::Unmap(const_cast<pstn_routes*>(routes), sizeof(pstn_routes));
}

}  // namespace postern
