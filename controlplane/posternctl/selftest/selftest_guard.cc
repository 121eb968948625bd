// selftest_guard.cc - see selftest_guard.h.
// SPDX-License-Identifier: Apache-2.0
#include "selftest_guard.h"

#include <fcntl.h>
#include <mntent.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <iostream>

#include "selftest_io.h"

namespace postern::ctl_command::selftest {
namespace {

constexpr int kRemoveTries = 200;
constexpr useconds_t kRemovePauseUsec = 20'000;
pid_t worker;  // of the signal handler

extern "C" void EndWorker(int) {
  if (worker > 0) kill(worker, SIGKILL);
}

std::string CgroupMount() {
  FILE* mounts = setmntent("/proc/self/mounts", "re");
  std::string found;
  while (mounts != nullptr && found.empty()) {
    const mntent* entry = getmntent(mounts);
    if (entry == nullptr) break;
    if (strcmp(entry->mnt_type, "cgroup2") == 0) found = entry->mnt_dir;
  }
  if (mounts != nullptr) endmntent(mounts);
  return found;
}

Place MakePlace() {
  Place place;
  if (geteuid() != 0) {
    place.why_not = "needs root";
    return place;
  }
  const std::string mount = CgroupMount();
  if (mount.empty()) {
    place.why_not = "no cgroup2 is mounted";
    return place;
  }
  char dir[] = "/tmp/pstn-self-XXXXXX";
  if (mkdtemp(dir) == nullptr) Fail("a directory below /tmp");
  place.dir = dir;
  place.cgroup = mount + "/pstn-self-" + std::to_string(getpid());
  if (mkdir(place.cgroup.c_str(), 0755) != 0) {
    place.why_not = place.cgroup + ": " + strerror(errno);
    place.cgroup.clear();
  }
  return place;
}

// A process that has just died may be in the cgroup for a moment still.
void Remove(const Place& place) {
  if (!place.dir.empty()) (void)rmdir(place.dir.c_str());
  if (place.cgroup.empty()) return;
  const Fd all(open((place.cgroup + "/cgroup.kill").c_str(), O_WRONLY | O_CLOEXEC));
  if (all.ok()) (void)!write(all.get(), "1", 1);
  for (int i = 0; i < kRemoveTries && rmdir(place.cgroup.c_str()) != 0 && errno == EBUSY; i++)
    usleep(kRemovePauseUsec);
}

// `dir`, and a place in it that keeps a broker's programs while another broker is started.
bool HaveOwnMounts(const std::string& dir) {
  const std::string pins = dir + "/bpf";
  return unshare(CLONE_NEWNS) == 0 &&
         mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         mount("tmpfs", dir.c_str(), "tmpfs", 0, "mode=755") == 0 &&
         mkdir(pins.c_str(), 0700) == 0 && mount("bpf", pins.c_str(), "bpf", 0, nullptr) == 0;
}

[[noreturn]] void Work(const Place& place, const std::function<int(const Place&)>& work) {
  int status = 1;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) signal(number, SIG_DFL);
  try {
    Place own = place;
    if (!own.dir.empty() && own.why_not.empty() && !HaveOwnMounts(own.dir))
      own.why_not = std::string("no mounts of its own: ") + strerror(errno);
    status = work(own);
  } catch (const std::exception& error) {
    std::cerr << "posternctl: " << error.what() << '\n';
  }
  std::cout.flush();
  fflush(stdout);
  _exit(status);
}

}  // namespace

int Guarded(const std::function<int(const Place&)>& work) {
  signal(SIGPIPE, SIG_IGN);
  sigset_t ends, before;
  sigemptyset(&ends);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&ends, number);
  sigprocmask(SIG_BLOCK, &ends, &before);
  const Place place = MakePlace();  // a signal before EndWorker is there would leave it behind
  worker = fork();
  if (worker == 0) {
    sigprocmask(SIG_SETMASK, &before, nullptr);
    Work(place, work);
  }
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) signal(number, EndWorker);
  sigprocmask(SIG_SETMASK, &before, nullptr);
  int status = 0;
  while (worker > 0 && waitpid(worker, &status, 0) < 0 && errno == EINTR) {
  }
  Remove(place);
  if (worker < 0) throw std::runtime_error("fork");
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  std::cerr << "posternctl: the self-test was ended by signal " << WTERMSIG(status) << '\n';
  return 1;
}

}  // namespace postern::ctl_command::selftest
