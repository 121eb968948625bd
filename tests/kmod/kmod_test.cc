// SPDX-License-Identifier: Apache-2.0
// kmod_test.cc - runs in a guest as its only program, as root: loads the module, then each test.
//
//   kmod_test MODULE [NAME...]   a test's name, or a part of it
#include <dirent.h>
#include <signal.h>
#include <sys/syscall.h>

#include <initializer_list>

#include "kmod_world.h"

namespace postern {
namespace {

constexpr unsigned kTestSeconds = 300;

long Load(const char* path) {
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  const long r = syscall(SYS_finit_module, fd, "", 0);
  close(fd);
  return r;
}

// Lines of a list of the module's, without the first.
int Lines(const char* list) {
  char path[64];
  snprintf(path, sizeof path, "/proc/postern/%s", list);
  FILE* f = fopen(path, "re");
  if (f == nullptr) return -1;
  int lines = -1;
  for (int c; (c = fgetc(f)) != EOF;) lines += c == '\n';
  fclose(f);
  return lines;
}

// Which processes there are, and where in the kernel: what something was left by.
void SayWhoIsLeft() {
  DIR* const all = opendir("/proc");
  while (const dirent* entry = all != nullptr ? readdir(all) : nullptr) {
    const int pid = atoi(entry->d_name);
    char path[64], text[1024] = {};
    snprintf(path, sizeof path, "/proc/%d/comm", pid);
    const int comm = open(path, O_RDONLY | O_CLOEXEC);
    if (pid <= 1 || pid == getpid() || comm < 0 || read(comm, text, sizeof text - 1) <= 0 ||
        strcmp(text, "kmod_test\n") != 0) {
      close(comm);
      continue;
    }
    close(comm);
    snprintf(path, sizeof path, "/proc/%d/stack", pid);
    const int stack = open(path, O_RDONLY | O_CLOEXEC);
    memset(text, 0, sizeof text);
    (void)!read(stack, text, sizeof text - 1);
    close(stack);
    printf("  process %d is at\n%s", pid, text);
  }
  if (all != nullptr) closedir(all);
}

bool RunOne(const KmodTest& t) {
  printf("-- %s\n", t.name);
  fflush(stdout);
  const pid_t pid = fork();
  if (pid == 0) {
    setpgid(0, 0);
    ForgetTid();
    alarm(kTestSeconds);
    t.run();
    fflush(stdout);
    _exit(g_wrong == 0 ? 0 : 1);
  }
  int status = -1;
  waitpid(pid, &status, 0);
  kill(-pid, SIGKILL);  // what the test has left
  while (waitpid(-1, nullptr, 0) > 0) {
  }
  if (WIFSIGNALED(status)) printf("  %s: killed by signal %d\n", t.name, WTERMSIG(status));
  bool good = status == 0;
  // However it ended, the module has nothing left of it.
  for (const char* list : {"stacks", "endpoints", "holders"}) {
    for (int i = 0; i < 100 && Lines(list) > 0; i++) usleep(20000);
    if (Lines(list) == 0) continue;
    printf("  %s: left %d %s\n", t.name, Lines(list), list);
    good = false;
  }
  if (!good) SayWhoIsLeft();
  if (!good) printf("  %s: FAILED\n", t.name);
  fflush(stdout);
  return good;
}

bool IsWanted(const char* name, char** wanted, int count) {
  for (int i = 0; i < count; i++)
    if (strstr(name, wanted[i]) != nullptr) return true;
  return count == 0;
}

}  // namespace

const char* g_module;

}  // namespace postern

int main(int argc, char** argv) {
  using postern::g_tests;
  postern::g_module = argc > 1 ? argv[1] : "/postern.ko";
  signal(SIGPIPE, SIG_IGN);
  if (postern::Load(postern::g_module) != 0) {
    perror("kmod_test: the module can't be loaded");
    printf("0 passed, 1 failed\n");
    return 1;
  }
  int passed = 0, failed = 0;
  for (const postern::KmodTest* t = g_tests; t != nullptr; t = t->next) {
    if (!postern::IsWanted(t->name, argv + 2, argc > 2 ? argc - 2 : 0)) continue;
    if (postern::RunOne(*t))
      passed++;
    else
      failed++;
  }
  if (syscall(SYS_delete_module, "postern", O_NONBLOCK) != 0) {
    perror("kmod_test: the module can't be removed at the end");
    failed++;
  }
  printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}
