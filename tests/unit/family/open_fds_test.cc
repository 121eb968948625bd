// open_fds_test.cc - which numbers are open: by /proc, by poll(), and with a limit below them.
// SPDX-License-Identifier: Apache-2.0

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <initializer_list>
#include <vector>

#include "../kit/catch.h"
#include "family/family.h"
#include "family/open_fds.h"

namespace postern {
namespace {

std::vector<int> ByProc() {
  std::vector<int> found;
  EachOpen([&](int fd) { found.push_back(fd); });
  std::sort(found.begin(), found.end());
  return found;
}
std::vector<int> ByPoll() {
  std::vector<int> found;
  EachOpenByPoll([&](int fd) { found.push_back(fd); });
  return found;
}

// A number that is open for the length of a test.
struct Number {
  explicit Number(int fd) : fd_(fd) { REQUIRE(dup2(0, fd) == fd); }
  ~Number() { close(fd_); }
  Number(const Number&) = delete;
  Number& operator=(const Number&) = delete;
  const int fd_;
};

TEST_CASE("open_fds: both ways find the same, and the highest number") {
  rlimit before;
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit most = {before.rlim_max, before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_NOFILE, &most) == 0);
  const int highest = static_cast<int>(std::min<rlim_t>(most.rlim_cur, kFdMax)) - 1;
  {
    const Number one(1000), two(highest);
    std::vector<Number*> many;  // more than one batch of the directory
    for (int i = 0; i < 300; i++) many.push_back(new Number(2000 + 3 * i));
    const std::vector<int> found = ByProc();
    CHECK(found == ByPoll());
    for (const int fd : {0, 1, 2, 1000, 2000, 2897, highest})
      CHECK(std::count(found.begin(), found.end(), fd) == 1);
    CHECK(std::count(found.begin(), found.end(), 1001) == 0);
    // What is open stays open when the limit is lowered.
    rlimit few = {16, most.rlim_max};
    REQUIRE(setrlimit(RLIMIT_NOFILE, &few) == 0);
    bool open[kPollBatch];
    CHECK(PollOpen(1000, open) == 16);
    CHECK((open[0] && !open[1]));
    REQUIRE(setrlimit(RLIMIT_NOFILE, &most) == 0);
    for (Number* n : many) delete n;
  }
  REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
}

}  // namespace
}  // namespace postern
