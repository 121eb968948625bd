// SPDX-License-Identifier: Apache-2.0
// area_test.cc - a segment is mapped only if it is what it has to be.
#include "state/area.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <initializer_list>
#include <set>
#include <string>

#include "../kit/catch.h"
#include "state/view.h"

namespace postern {
namespace {

constexpr int kLinkSeals = F_SEAL_SHRINK | F_SEAL_GROW;

struct Fd {
  explicit Fd(int f) : fd(f) {}
  ~Fd() { close(fd); }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  const int fd;
};

// A memfd made by hand, as a peer could send it.
int Forged(off_t bytes, int seals, uint32_t magic, uint32_t version) {
  const int fd = memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  REQUIRE(ftruncate(fd, bytes) == 0);
  const uint32_t words[2] = {magic, version};
  REQUIRE(pwrite(fd, words, sizeof words, 0) == sizeof words);
  REQUIRE(fcntl(fd, F_ADD_SEALS, seals) == 0);
  return fd;
}

TEST_CASE("area: segments are sealed and of their size, and close on exec") {
  const pstn_uuid id = NewUuid(), a = NewUuid(), b = NewUuid();
  const Fd stack(CreateStack(id)), lgr(CreateLgr(id, a, b));
  for (const int fd : {stack.fd, lgr.fd}) {
    REQUIRE(fd >= 0);
    CHECK((fcntl(fd, F_GET_SEALS) & kLinkSeals) == kLinkSeals);
    CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) == -1);  // nobody can make it read-only under us
    CHECK(ftruncate(fd, 4096) == -1);
    CHECK(ftruncate(fd, 1ll << 32) == -1);
    CHECK((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
  }
  StackMap* s = MapStack(stack.fd);
  REQUIRE(s != nullptr);
  CHECK(SameUuid(s->hdr.id, id));
  CHECK(s->hdr.size_bytes == s->layout.bytes);
  CHECK(s->hdr.uid == geteuid());
  CHECK(s->hdr.eps.head == PSTN_NONE);
  UnmapStack(s);
  uint8_t* base = MapLgr(lgr.fd, &id);
  REQUIRE(base != nullptr);
  CHECK(SameUuid(LgrHdr(base).stack[0], a));
  CHECK(SameUuid(LgrHdr(base).stack[1], b));
  UnmapLgr(base);
}

TEST_CASE("area: a link group of another id is refused") {
  const pstn_uuid id = NewUuid(), other = NewUuid();
  const Fd lgr(CreateLgr(id, id, id));
  CHECK(MapLgr(lgr.fd, &other) == nullptr);
  uint8_t* base = MapLgr(lgr.fd, nullptr);
  REQUIRE(base != nullptr);
  UnmapLgr(base);
}

// As another user's daemon could send it: with the header of a good one.
int ForgedLgr(const pstn_uuid& id, int seals) {
  const Fd good(CreateLgr(id, id, id));
  pstn_lgr_hdr header;
  REQUIRE(pread(good.fd, &header, sizeof header, 0) == sizeof header);
  const int fd = Forged(PSTN_LGR_BYTES, 0, 0, 0);
  REQUIRE(pwrite(fd, &header, sizeof header, 0) == sizeof header);
  REQUIRE(fcntl(fd, F_ADD_SEALS, seals) == 0);
  return fd;
}

TEST_CASE("area: a link group that a process could not map to write is none") {
  constexpr int kSealed = kLinkSeals | F_SEAL_SEAL, kFutureWrite = 0x10;
  const pstn_uuid id = NewUuid();
  pstn_uuid owner[2];
  const Fd good(ForgedLgr(id, kSealed)), open_to_seals(ForgedLgr(id, kLinkSeals)),
      no_write(ForgedLgr(id, kSealed | F_SEAL_WRITE)),
      no_more_write(ForgedLgr(id, kSealed | kFutureWrite));
  const std::string path = "/proc/self/fd/" + std::to_string(good.fd);
  const Fd to_read(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  REQUIRE(to_read.fd >= 0);
  CHECK(OwnersOfLgr(good.fd, id, owner));
  for (const int fd : {open_to_seals.fd, no_write.fd, no_more_write.fd, to_read.fd})
    CHECK(!OwnersOfLgr(fd, id, owner));
}

TEST_CASE("area: one kind of segment is not another") {
  const pstn_uuid id = NewUuid();
  const Fd stack(CreateStack(id)), lgr(CreateLgr(id, id, id));
  CHECK(MapStack(lgr.fd) == nullptr);
  CHECK(MapLgr(stack.fd, nullptr) == nullptr);
  CHECK(MapDir(stack.fd) == nullptr);
  CHECK(MapDir(lgr.fd) == nullptr);
}

TEST_CASE("area: size, seals, magic and version are each checked") {
  const off_t size = static_cast<off_t>(PSTN_LGR_BYTES);
  const auto refused = [](int made) {
    const Fd fd(made);
    uint8_t* base = MapLgr(fd.fd, nullptr);
    if (base != nullptr) UnmapLgr(base);
    return base == nullptr;
  };
  CHECK_FALSE(refused(Forged(size, kLinkSeals, PSTN_MAGIC_LGR, PSTN_ABI_VERSION)));
  CHECK(refused(Forged(size - 4096, kLinkSeals, PSTN_MAGIC_LGR, PSTN_ABI_VERSION)));
  CHECK(refused(Forged(size + 4096, kLinkSeals, PSTN_MAGIC_LGR, PSTN_ABI_VERSION)));
  CHECK(refused(Forged(8, kLinkSeals, PSTN_MAGIC_LGR, PSTN_ABI_VERSION)));
  CHECK(refused(Forged(size, F_SEAL_GROW, PSTN_MAGIC_LGR, PSTN_ABI_VERSION)));
  CHECK(refused(Forged(size, F_SEAL_SHRINK, PSTN_MAGIC_LGR, PSTN_ABI_VERSION)));
  CHECK(refused(Forged(size, 0, PSTN_MAGIC_LGR, PSTN_ABI_VERSION)));
  CHECK(refused(Forged(size, kLinkSeals, PSTN_MAGIC_STACK, PSTN_ABI_VERSION)));
  CHECK(refused(Forged(size, kLinkSeals, PSTN_MAGIC_LGR, PSTN_ABI_VERSION + 1)));
}

TEST_CASE("area: what is not a memfd is refused") {
  const Fd null(open("/dev/null", O_RDWR)), file(open("/proc/self/exe", O_RDONLY));
  for (const int fd : {-1, null.fd, file.fd}) {
    CHECK(MapStack(fd) == nullptr);
    CHECK(MapLgr(fd, nullptr) == nullptr);
    CHECK(MapDir(fd) == nullptr);
  }
}

TEST_CASE("area: identifiers differ and say that they are random") {
  std::set<std::pair<uint64_t, uint64_t>> seen;
  for (int i = 0; i < 1000; i++) {
    const pstn_uuid id = NewUuid();
    CHECK((id.hi >> 12 & 0xfu) == 4);
    CHECK(id.lo >> 62 == 2);
    CHECK(seen.insert({id.hi, id.lo}).second);
  }
}

}  // namespace
}  // namespace postern
