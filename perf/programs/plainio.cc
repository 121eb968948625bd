// plainio.cc - reads and writes of files and pipes: nothing here for Postern to accelerate.
// SPDX-License-Identifier: Apache-2.0
//
//   plainio -f FILE -t MILLISECONDS [-o]
//
// Alternates between the two for the whole time: 4 KiB reads of FILE (in the page cache) by lseek
// and read, and 4 KiB through a pipe by write and read, all in one thread, so that neither disk nor
// scheduler is in the figure. Prints calls per second. Under the wrapper it pays for interception
// and gets nothing for it, which is what is to be measured.
//
// With -o it does what a web server does for a small file (open, fstat, read of 1 KiB, close) and
// prints the time of one: bench.py counts it as work that stays when the network costs nothing.

#include <fcntl.h>
#include <getopt.h>
#include <sys/stat.h>

#include <cinttypes>

#include "measuring.h"

namespace postern::perf {
namespace {

constexpr std::size_t kBlockBytes = 4096;
constexpr std::size_t kServedBytes = 1024;
constexpr int kBlocksPerPass = 64;
constexpr std::uint64_t kMillisecondsMax = 600000;

std::uint64_t ReadFilePass(int fd, char* block) {
  if (::lseek(fd, 0, SEEK_SET) != 0) Die("lseek");
  std::uint64_t calls = 1;
  for (int i = 0; i < kBlocksPerPass; ++i) {
    if (::read(fd, block, kBlockBytes) != static_cast<ssize_t>(kBlockBytes)) Die("read");
    ++calls;
  }
  return calls;
}

std::uint64_t PipePass(const int (&ends)[2], char* block) {
  std::uint64_t calls = 0;
  for (int i = 0; i < kBlocksPerPass; ++i) {
    if (::write(ends[1], block, kBlockBytes) != static_cast<ssize_t>(kBlockBytes)) Die("write");
    if (::read(ends[0], block, kBlockBytes) != static_cast<ssize_t>(kBlockBytes)) Die("read");
    calls += 2;
  }
  return calls;
}

void OpenFilePass(const char* path, char* block) {
  for (int i = 0; i < kBlocksPerPass; ++i) {
    const int file = ::open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) Die(path);
    struct stat status {};
    if (::fstat(file, &status) != 0) Die("fstat");
    if (::pread(file, block, kServedBytes, 0) != static_cast<ssize_t>(kServedBytes)) Die("pread");
    if (::close(file) != 0) Die("close");
  }
}

void RunOpens(const char* path, std::uint64_t milliseconds) {
  static char block[kServedBytes];
  const double start_s = SecondsNow();
  const double end_s = start_s + static_cast<double>(milliseconds) / 1000;
  std::uint64_t files = 0;
  double now_s = start_s;
  while (now_s < end_s) {
    OpenFilePass(path, block);
    files += kBlocksPerPass;
    now_s = SecondsNow();
  }
  std::printf("usec_per_file %.4f\n", (now_s - start_s) * 1e6 / static_cast<double>(files));
}

void Run(const char* path, std::uint64_t milliseconds) {
  static char block[kBlockBytes];
  const int file = ::open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) Die(path);
  int ends[2];
  if (::pipe(ends) != 0) Die("pipe");
  const double start_s = SecondsNow();
  const double end_s = start_s + static_cast<double>(milliseconds) / 1000;
  std::uint64_t calls = 0;
  double now_s = start_s;
  while (now_s < end_s) {
    calls += ReadFilePass(file, block) + PipePass(ends, block);
    now_s = SecondsNow();
  }
  std::printf("calls %" PRIu64 "\ncalls_per_sec %.1f\n", calls,
              static_cast<double>(calls) / (now_s - start_s));
}

}  // namespace
}  // namespace postern::perf

int main(int argc, char** argv) {
  const char* path = nullptr;
  std::uint64_t milliseconds = 1000;
  auto* run = &postern::perf::Run;
  int option = 0;
  while ((option = ::getopt(argc, argv, "f:t:o")) != -1) {
    if (option == 'f') {
      path = optarg;
    } else if (option == 'o') {
      run = &postern::perf::RunOpens;
    } else if (option == 't') {
      milliseconds = postern::perf::ParseNumber(optarg, postern::perf::kMillisecondsMax);
    } else {
      return 2;
    }
  }
  if (path == nullptr) {
    std::fprintf(stderr, "usage: plainio -f FILE (of at least 256 KiB) [-t MILLISECONDS] [-o]\n");
    return 2;
  }
  run(path, milliseconds);
  return 0;
}
