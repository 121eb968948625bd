// SPDX-License-Identifier: Apache-2.0
// conform_ring.cc - commands by an io_uring: `ring HOW CMD ...` (ring_calls.h), and entries that
// end more than once.
#include <errno.h>
#include <linux/io_uring.h>

#include <cstring>
#include <sstream>

#include "conform.h"
#include "ring_calls.h"

namespace conform {
namespace {

std::string Ring(const Args& a) {
  const by::With how(a[0]);
  return Run(Tail(a, 1));
}

std::string Last(int result) {
  if (result >= 0) return ", then " + std::to_string(result);
  errno = -result;
  return ", then " + Errno();
}

// `acceptmulti HOW L NAME ...`: so many clients, whether they wait already or come.
std::string AcceptMulti(const Args& a) {
  const by::With how(a[0]);
  io_uring_sqe entry{};
  entry.opcode = IORING_OP_ACCEPT;
  entry.fd = Fd(a[1]);
  entry.ioprio = IORING_ACCEPT_MULTISHOT;
  size_t at = 2;
  std::string out;
  const int last = by::Repeatedly(entry, [&](const io_uring_cqe& end) {
    if (end.res < 0) return true;
    out += " " + (at < a.size() ? Made(a[at], end.res) : "one more");
    return ++at < a.size();
  });
  return out + Last(last);
}

// `recvmulti HOW NAME BYTES`: so many, or to the end.
std::string RecvMulti(const Args& a) {
  constexpr uint16_t kGroup = 7;
  constexpr size_t kBuffers = 16, kBytes = 16384;
  std::string room(kBuffers * kBytes, '.'), got;
  const by::With how(a[0]);
  io_uring_sqe buffers{};
  buffers.opcode = IORING_OP_PROVIDE_BUFFERS;
  buffers.fd = kBuffers;
  buffers.addr = reinterpret_cast<uint64_t>(room.data());
  buffers.len = kBytes;
  buffers.buf_group = kGroup;
  {
    const by::With plain("ring");
    const int r = by::Once(buffers);
    if (r < 0) return "no buffers" + Last(r);
  }
  const by::With again(a[0]);
  io_uring_sqe entry{};
  entry.opcode = IORING_OP_RECV;
  entry.fd = Fd(a[1]);
  entry.ioprio = IORING_RECV_MULTISHOT;
  entry.flags = IOSQE_BUFFER_SELECT;
  entry.buf_group = kGroup;
  const auto wanted = static_cast<size_t>(Number(a[2]));
  const int last = by::Repeatedly(entry, [&](const io_uring_cqe& end) {
    if (end.res <= 0) return true;
    const size_t buffer = end.flags >> IORING_CQE_BUFFER_SHIFT;
    got += room.substr(buffer * kBytes, static_cast<size_t>(end.res));
    return got.size() < wanted;
  });
  const by::With plain("ring");
  buffers.opcode = IORING_OP_REMOVE_BUFFERS;
  buffers.addr = buffers.len = 0;
  (void)by::Once(buffers);
  return Data(got) + Last(last > 0 ? 0 : last);
}

}  // namespace

const Entry kRingCommands[] = {{"ring", 2, Ring},
                               {"acceptmulti", 3, AcceptMulti},
                               {"recvmulti", 3, RecvMulti},
                               {nullptr, 0, nullptr}};

}  // namespace conform
