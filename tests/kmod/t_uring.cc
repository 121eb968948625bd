// SPDX-License-Identifier: Apache-2.0
// t_uring.cc - io_uring on the module's sockets.
#include <liburing.h>

#include "kmod_world.h"

namespace postern {
namespace {

int Result(io_uring& ring) {
  io_uring_cqe* cqe = nullptr;
  const int r = io_uring_wait_cqe(&ring, &cqe);
  if (r < 0) return r;
  const int result = cqe->res;
  io_uring_cqe_seen(&ring, cqe);
  return result;
}

}  // namespace

KMOD_TEST(io_uring_has_it) {
  KmodWorld w;
  int a = w.Socket(0);
  const int b = w.Socket(1);
  io_uring ring;
  const int r = io_uring_queue_init(16, &ring, 0);
  EXPECT_IS(r, 0);
  if (r != 0) return;
  char t[16] = {};
  // A receive that has to wait, and one that does not.
  io_uring_prep_recv(io_uring_get_sqe(&ring), a, t, sizeof t, 0);
  EXPECT_IS(io_uring_submit(&ring), 1);
  usleep(50000);
  EXPECT_IS(write(b, "late", 4), 4);
  EXPECT_IS(Result(ring), 4);
  EXPECT_IS(write(b, "there", 5), 5);
  io_uring_prep_recv(io_uring_get_sqe(&ring), a, t, sizeof t, 0);
  EXPECT_IS(io_uring_submit(&ring), 1);
  EXPECT_IS(Result(ring), 5);
  io_uring_prep_send(io_uring_get_sqe(&ring), a, "answer", 6, 0);
  EXPECT_IS(io_uring_submit(&ring), 1);
  EXPECT_IS(Result(ring), 6);
  EXPECT_IS(read(b, t, sizeof t), 6);
  // A poll that tells each time.
  io_uring_prep_poll_multishot(io_uring_get_sqe(&ring), a, POLLIN);
  EXPECT_IS(io_uring_submit(&ring), 1);
  for (int i = 0; i < 3; i++) {
    EXPECT_IS(write(b, "x", 1), 1);
    EXPECT((Result(ring) & POLLIN) != 0);
    EXPECT_IS(read(a, t, sizeof t), 1);
  }
  // A registered file, whose number is closed.
  EXPECT_IS(io_uring_register_files(&ring, &a, 1), 0);
  close(a);
  io_uring_sqe* sqe = io_uring_get_sqe(&ring);
  io_uring_prep_send(sqe, 0, "by the ring alone", 17, 0);
  sqe->flags |= IOSQE_FIXED_FILE;
  EXPECT_IS(io_uring_submit(&ring), 1);
  int result;
  while ((result = Result(ring)) != 17 && result >= 0) {
  }
  EXPECT_IS(result, 17);
  EXPECT_IS(recv(b, t, sizeof t, 0), 16);
  EXPECT_IS(read(b, t, sizeof t), 1);
  io_uring_queue_exit(&ring);
  EXPECT_IS(read(b, t, sizeof t), 0);  // the ring had the last of it
}

}  // namespace postern
