// check_test.cc - checks of shared memory: counted by place; which of them end a program.
// SPDX-License-Identifier: Apache-2.0
#include "base/check.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <initializer_list>
#include <string>

#include "../kit/catch.h"
#include "base/schema/counters.h"
#include "endpoint/state.h"

namespace postern {
namespace {

// In a child, with counts in memory that the parent sees: what this test expects others don't.
class Child {
 public:
  Child() : hdr_(Map()) {}
  ~Child() { munmap(hdr_, sizeof *hdr_); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // Its status, as wait() has it.
  template <typename Fn>
  int Run(Fn fn) {
    const pid_t child = fork();
    if (child == 0) {
      for (const int trap : {SIGILL, SIGTRAP}) signal(trap, SIG_DFL);  // not the test runner's
      CountChecksIn(hdr_);
      fn();
      _exit(0);
    }
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child);
    return status;
  }
  const pstn_stack_hdr& hdr() const { return *hdr_; }

 private:
  static pstn_stack_hdr* Map() {
    void* p = mmap(nullptr, sizeof(pstn_stack_hdr), PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(p != MAP_FAILED);
    return static_cast<pstn_stack_hdr*>(p);
  }
  pstn_stack_hdr* hdr_;
};

bool ExitedWell(int status) { return WIFEXITED(status) && WEXITSTATUS(status) == 0; }

}  // namespace

TEST_CASE("a check that is true costs nothing and says so", "[check]") {
  Child child;
  int looks = 0;
  CHECK(ExitedWell(child.Run([&] {
    if (!PSTN_CHECK(++looks == 1) || looks != 1) _exit(1);
  })));
  CHECK(child.hdr().counters[kCounterChecksFailed] == 0);
  CHECK(child.hdr().checks[0].state == 0);
}

TEST_CASE("a false check is counted at its place, in memory that lies without an end", "[check]") {
  Child child;
  uint32_t line = 0;
  CHECK(ExitedWell(child.Run([] {
    ExpectLies();
    for (int i = 0; i < 3; i++)
      if (PSTN_CHECK(i > 3, "for this test")) _exit(1);
  })));
  line = __LINE__ - 2;
  CHECK(child.hdr().counters[kCounterChecksFailed] == 3);
  CHECK(child.hdr().checks[0].count == 3);
  CHECK(child.hdr().checks[1].state == 0);
  const std::string place = child.hdr().checks[0].place;
  CHECK(place.substr(place.rfind('/') + 1) == "check_test.cc:" + std::to_string(line));
}

TEST_CASE("more places than there is room for are counted all the same", "[check]") {
  Child child;
  CHECK(ExitedWell(child.Run([] {
    ExpectLies();
    for (uint32_t line = 1; line <= PSTN_CHECK_PLACES + 4; line++)
      (void)CheckFailed("lib/none.cc", line, "");
  })));
  CHECK(child.hdr().counters[kCounterChecksFailed] == PSTN_CHECK_PLACES + 4);
  CHECK(strcmp(child.hdr().checks[PSTN_CHECK_PLACES - 1].place, "lib/none.cc:16") == 0);
}

TEST_CASE("the place is cut at its room", "[check]") {
  Child child;
  CHECK(ExitedWell(child.Run([] {
    ExpectLies();
    (void)CheckFailed(
        "/usr/lib/b/../lib/a_folder_with_a_long_name/and_a_file_whose_name_is_long.cc", 7, "");
  })));
  const pstn_check& c = child.hdr().checks[0];
  CHECK(strnlen(c.place, sizeof c.place) == sizeof c.place - 1);
  CHECK(strncmp(c.place, "lib/a_folder", 12) == 0);
}

TEST_CASE("a false check ends the program only in builds that are for that", "[check]") {
  Child child;
  const int status = child.Run([] {
    if (PSTN_CHECK(getpid() == 0)) _exit(1);
  });
#if defined(PSTN_CHECKS)
  CHECK(WIFSIGNALED(status));
#else
  CHECK(ExitedWell(status));
#endif
  CHECK(child.hdr().counters[kCounterChecksFailed] == 1);
}

TEST_CASE("an edge that no endpoint has is counted where it was taken", "[check]") {
  Child child;
  CHECK(ExitedWell(child.Run([] {
    ExpectLies();
    pstn_ep ep = {};
    ep.state = PSTN_EP_CLOSED;
    SetState(ep, PSTN_EP_LISTEN);
  })));
  CHECK(child.hdr().checks[0].count == 1);
  CHECK(strstr(child.hdr().checks[0].place, "check_test.cc:") != nullptr);
}

}  // namespace postern
