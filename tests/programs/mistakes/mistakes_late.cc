// mistakes_late.cc - images that take long to come up, and images that come up without the library.
// SPDX-License-Identifier: Apache-2.0
//
// A new image is in the loader until the library's constructor runs. These tests hold it there for
// as long as they like: LD_PRELOAD names a FIFO, and the loader waits in open() for its writer.
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <string>
#include <thread>
#include <vector>

#include "mistakes.h"

namespace mistakes {
namespace {

// More than posternd waits for an image that will not come (kExecGrace).
constexpr int kLateSeconds = 12;

struct Way {
  bool spawn;
  bool library_first;  // the loader has mapped it when it meets the FIFO
};
constexpr std::array kWays = {Way{true, true}, Way{true, false}, Way{false, true},
                              Way{false, false}};

std::string ValueOf(const char* name) {
  const char* const value = getenv(name);
  return value != nullptr ? value : "";
}

// The environment with these variables instead of what they were.
std::vector<std::string> EnvironmentWith(const std::vector<std::string>& changed) {
  std::vector<std::string> all(changed);
  for (char** e = environ; *e != nullptr; ++e) {
    const std::string entry(*e), name = entry.substr(0, entry.find('=') + 1);
    bool is_changed = false;
    for (const std::string& other : changed) is_changed |= other.rfind(name, 0) == 0;
    if (!is_changed) all.push_back(entry);
  }
  return all;
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> all;
  for (std::string& s : strings) all.push_back(s.data());
  all.push_back(nullptr);
  return all;
}

pid_t Start(bool spawn, const char* path, std::vector<std::string> words,
            std::vector<std::string> environment) {
  const std::vector<char*> argv = Pointers(words), env = Pointers(environment);
  pid_t child = -1;
  if (spawn) {
    EXPECT(posix_spawn(&child, path, nullptr, nullptr, argv.data(), env.data()) == 0);
  } else if ((child = fork()) == 0) {
    execve(path, argv.data(), env.data());
    Die(__FILE__, __LINE__, "exec to succeed");
  }
  EXPECT(child > 0);
  return child;
}

pid_t StartLate(const Way& way, int fd, const std::string& fifo) {
  EXPECT(mkfifo(fifo.c_str(), 0600) == 0);
  const std::string ours = ValueOf("LD_PRELOAD");
  const std::string preload = ours.empty()        ? fifo
                              : way.library_first ? ours + ":" + fifo
                                                  : fifo + ":" + ours;
  return Start(way.spawn, Self(), {"mistakes", "resume", "echo", std::to_string(fd)},
               EnvironmentWith({"LD_PRELOAD=" + preload}));
}

// posternd looks at a family's slots when something happens in it.
void StirFamily() {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  ExpectChild(child);
}

void LateServe(int listener) {
  char directory[] = "/tmp/late-XXXXXX";
  EXPECT(mkdtemp(directory) != nullptr);
  std::array<pid_t, kWays.size()> children{};
  std::array<std::string, kWays.size()> fifos;
  for (size_t i = 0; i < kWays.size(); ++i) {
    const int fd = Accept(listener);
    fifos[i] = std::string(directory) + "/" + std::to_string(i);
    children[i] = StartLate(kWays[i], fd, fifos[i]);
    close(fd);
  }
  for (int i = 0; i < kLateSeconds; ++i) {
    StirFamily();
    sleep(1);
  }
  for (const std::string& fifo : fifos) {
    close(open(fifo.c_str(), O_WRONLY | O_CLOEXEC));
    unlink(fifo.c_str());
  }
  for (const pid_t child : children) ExpectChild(child);
  rmdir(directory);
}

void LateConnect(uint16_t port) {
  std::array<int, kWays.size()> all{};
  for (int& fd : all) {
    fd = Connect(port);
    Put(fd, "early");
  }
  for (const int fd : all) {
    ExpectText(fd, "early");
    Put(fd, "late");
    ExpectText(fd, "late");
    EXPECT(shutdown(fd, SHUT_WR) == 0);
    ExpectEnd(fd);
    close(fd);
  }
}

// Neither image takes the connection over, though all spoke for it: the one is not given the
// library, the other has it switched off.
void WithoutServe(int listener) {
  for (const bool spawn : {true, false}) {
    for (const char* changed : {"LD_PRELOAD=", "POSTERN_ACCEL=0"}) {
      const int fd = Accept(listener);
      const pid_t child = Start(spawn, "/bin/sleep", {"sleep", "60"}, EnvironmentWith({changed}));
      close(fd);
      sleep(1);
      StirFamily();
      char ended;
      const int line = Accept(listener);
      EXPECT(read(line, &ended, 1) == 1);
      close(line);
      EXPECT(kill(child, SIGKILL) == 0);
      EXPECT(waitpid(child, nullptr, 0) == child);
    }
  }
}

void WithoutConnect(uint16_t port) {
  for (int i = 0; i < 4; ++i) {
    const int fd = Connect(port), line = Connect(port);
    EXPECT(Readable(fd, 30000));
    char byte;
    EXPECT(read(fd, &byte, 1) <= 0);
    Put(line, "e");
    close(fd);
    ExpectEnd(line);
    close(line);
  }
}

// -- exec while another thread sends
// The thread that sends is the leader, whose id the kernel gives to the thread that calls exec. It
// ends in the middle of a call more often than not, with the connection's lock.
constexpr int kCutShort = 40;
constexpr size_t kPieceBytes = 65536;

void SendAndExec(int fd) {
  std::thread([fd] {
    usleep(2000);
    execl(Self(), "mistakes", "resume", "word", std::to_string(fd).c_str(), nullptr);
    Die(__FILE__, __LINE__, "exec to succeed");
  }).detach();
  const std::string piece(kPieceBytes, '.');
  for (;;) (void)send(fd, piece.data(), piece.size(), 0);
}

void CutShortServe(int listener) {
  const int fd = Accept(listener);
  for (int i = 0; i < kCutShort; ++i) {
    const pid_t child = fork();
    if (child == 0) SendAndExec(fd);
    ExpectChild(child);
  }
}

void CutShortConnect(uint16_t port) {
  const int fd = Connect(port);
  std::array<char, 65536> data;
  int words = 0;
  for (ssize_t n; (n = read(fd, data.data(), data.size())) != 0;) {
    EXPECT(n > 0);
    for (ssize_t i = 0; i < n; ++i) {
      const char c = data[static_cast<size_t>(i)];
      EXPECT(c == '.' || c == '!');
      words += c == '!';
    }
  }
  EXPECT(words == kCutShort);
}

}  // namespace

const Case kLateCases[] = {{"late_images", LateServe, LateConnect},
                           {"images_without", WithoutServe, WithoutConnect},
                           {"exec_beside_send", CutShortServe, CutShortConnect},
                           {nullptr, nullptr, nullptr}};

}  // namespace mistakes
