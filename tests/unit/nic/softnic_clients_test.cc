// softnic_clients_test.cc - what the driver of soft VIs maps of a program's, and what it does not.
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "../../../controlplane/softnic/clients.h"
#include "../kit/catch.h"
#include "state/area.h"

namespace postern::softnic {
namespace {

UniqueFd NewArea() { return UniqueFd(CreateArea(NewUuid(), 64)); }
UniqueFd NewRings() { return UniqueFd(CreateSoftRings()); }
UniqueFd NewBell(UniqueFd* other = nullptr) {
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  UniqueFd theirs(ends[1]);
  if (other != nullptr) *other = std::move(theirs);
  return UniqueFd(ends[0]);
}
void SendWith(int line, int fd) {
  char byte = 'a';
  iovec iov{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* const c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(c), &fd, sizeof(fd));
  REQUIRE(sendmsg(line, &message, 0) == 1);
}
UniqueFd Forged(off_t bytes, unsigned flags, int seals) {
  UniqueFd fd(memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags));
  if (!fd.ok() || ftruncate(fd.get(), bytes) != 0 || fcntl(fd.get(), F_ADD_SEALS, seals) != 0)
    return {};
  return fd;
}

TEST_CASE("softnic: only sealed memory that can't fail is mapped") {
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;
  CHECK(ViClient().Map(NewArea(), NewRings(), NewBell()) == 0);
  CHECK(ViClient().Map(NewRings(), NewRings(), NewBell()) == -EINVAL);
  CHECK(ViClient().Map(NewArea(), NewArea(), NewBell()) == -EINVAL);
  CHECK(ViClient().Map(NewArea(), {}, NewBell()) == -EINVAL);
  CHECK(ViClient().Map({}, NewRings(), NewBell()) == -EBADF);
  CHECK(ViClient().Map(Forged(1 << 20, 0, F_SEAL_GROW), NewRings(), NewBell()) == -EBADF);
  CHECK(ViClient().Map(Forged(1 << 20, 0, kSeals), NewRings(), NewBell()) == -EINVAL);
  // A file of huge pages can be made where there are none: touching it would be the driver's death.
  UniqueFd huge = Forged(2 << 20, MFD_HUGETLB, kSeals);
  if (!huge.ok()) {
    WARN("no hugetlbfs: a part of this is not tried");
    return;
  }
  UniqueFd area = NewArea();
  pstn_area head;
  REQUIRE(pread(area.get(), &head, sizeof head, 0) == sizeof head);
  (void)!pwrite(huge.get(), &head, sizeof head, 0);  // refused, and that is as good
  CHECK(ViClient().Map(std::move(huge), NewRings(), NewBell()) != 0);
  CHECK(ViClient().Map(NewArea(), Forged(2 << 20, MFD_HUGETLB, kSeals), NewBell()) == -EINVAL);
}

TEST_CASE("softnic: slots are used once; a bell tells of rings and of the end") {
  ViClients all;
  UniqueFd program;
  auto made = std::make_unique<ViClient>();
  REQUIRE(made->Map(NewArea(), NewRings(), NewBell(&program)) == 0);
  ViClient& vi = all.Add(std::move(made));
  CHECK(all.At(vi.slot) == &vi);
  CHECK(all.WithRings(vi.rings_fd.get()) == &vi);
  CHECK(all.WithRings(vi.area_fd.get()) == nullptr);
  CHECK(vi.Hear());
  CHECK(write(program.get(), "abc", 3) == 3);
  CHECK(vi.Hear());
  vi.Ring();
  char rung = 1;
  CHECK(read(program.get(), &rung, 1) == 1);
  {
    ViClient ended;
    UniqueFd its;
    REQUIRE(ended.Map(NewArea(), NewRings(), NewBell(&its)) == 0);
    its.Reset();
    CHECK_FALSE(ended.Hear());
  }
  // A descriptor that comes with it could take long to close: it is left where it is.
  int pipe_ends[2];
  REQUIRE(pipe2(pipe_ends, O_CLOEXEC | O_NONBLOCK) == 0);
  UniqueFd reader(pipe_ends[0]), writer(pipe_ends[1]);
  SendWith(program.get(), writer.get());
  writer.Reset();
  CHECK_FALSE(vi.Hear());
  CHECK((read(reader.get(), &rung, 1) == -1 && errno == EAGAIN));  // the other end is open still
  // Nobody listens: the driver does not wait. (The flags of its end are its own.)
  for (int i = 0; i < 100'000; i++) vi.Ring();
  program.Reset();
  vi.Ring();
  const uint32_t first = vi.slot;
  all.Remove(first);
  CHECK(all.At(first) == nullptr);
  CHECK(all.all().empty());
  auto next = std::make_unique<ViClient>();
  REQUIRE(next->Map(NewArea(), NewRings(), NewBell()) == 0);
  CHECK(all.Add(std::move(next)).slot != first);
}

}  // namespace
}  // namespace postern::softnic
