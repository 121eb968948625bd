// clients.cc - see clients.h.
// SPDX-License-Identifier: Apache-2.0
#include "clients.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "softnic_proto.h"

namespace postern::softnic {
namespace {

constexpr uint64_t kAreaBytesMax = 1ull << 30;

// Before Linux 6.16 a program can send them (base/no_descriptors.h). They are not taken: what is
// looked at only stays where it is, and is closed with the bell.
bool BringsDescriptors(int bell) {
  uint8_t byte;
  iovec iov{&byte, sizeof(byte)};
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  return recvmsg(bell, &message, MSG_DONTWAIT | MSG_PEEK) >= 0 &&
         (message.msg_flags & MSG_CTRUNC) != 0;
}

}  // namespace

int ViClient::Map(UniqueFd area, UniqueFd rings, UniqueFd with_bell) {
  AreaShape shape{};
  if (const int error = ReadAreaShape(area.get(), shape); error != 0) return error;
  if (shape.size_bytes > kAreaBytesMax) return -ENOMEM;
  rings_ = MapSoftRings(rings.get());
  if (rings_ == nullptr) return -EINVAL;
  const size_t bytes = size_t{shape.frame_count} << kFrameShift;
  // The frames alone: of the rest of the area nothing is the driver's.
  void* const at =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, area.get(), shape.frames_off);
  if (at == MAP_FAILED) return -errno;
  frames_ = static_cast<uint8_t*>(at);
  frames_bytes_ = bytes;
  area_fd = std::move(area);
  rings_fd = std::move(rings);
  bell = std::move(with_bell);
  bell.CameFrom(kBells);
  driver.Attach(*rings_, frames_, shape.frame_count);
  return 0;
}

ViClient::~ViClient() {
  UnmapSoftRings(rings_);
  if (frames_ != nullptr) munmap(frames_, frames_bytes_);
}

void ViClient::Ring() const {
  const uint8_t ring = 0;
  (void)!send(bell.get(), &ring, sizeof(ring), MSG_DONTWAIT | MSG_NOSIGNAL);
}

bool ViClient::Hear() const {
  uint8_t rung[64];
  for (int i = 0; i < 16; i++) {  // a program that rings faster than that is heard next time
    if (BringsDescriptors(bell.get())) return false;
    const ssize_t got = recv(bell.get(), rung, sizeof(rung), MSG_DONTWAIT);
    if (got <= 0) return got < 0 && (errno == EAGAIN || errno == EINTR);
  }
  return true;
}

bool ViClient::HasRings(int fd) const {
  struct stat left {
  }, right{};
  return fstat(fd, &left) == 0 && fstat(rings_fd.get(), &right) == 0 &&
         left.st_ino == right.st_ino && left.st_dev == right.st_dev;
}

ViClient& ViClients::Add(std::unique_ptr<ViClient> vi) {
  vi->slot = next_slot_++;
  list_.push_back(vi.get());
  return *(by_slot_[vi->slot] = std::move(vi));
}

void ViClients::Remove(uint32_t slot) {
  list_.erase(std::remove_if(list_.begin(), list_.end(),
                             [slot](const ViClient* vi) { return vi->slot == slot; }),
              list_.end());
  by_slot_.erase(slot);
}

ViClient* ViClients::At(uint32_t slot) {
  const auto it = by_slot_.find(slot);
  return it != by_slot_.end() ? it->second.get() : nullptr;
}

ViClient* ViClients::WithRings(int fd) {
  const auto it = std::find_if(list_.begin(), list_.end(),
                               [fd](const ViClient* vi) { return vi->HasRings(fd); });
  return it != list_.end() ? *it : nullptr;
}

}  // namespace postern::softnic
