// log.cc - lines with a time stamp on stderr; the size of the file that it is.
// SPDX-License-Identifier: Apache-2.0
#include "log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>

#include "fd.h"

namespace postern::daemon {
namespace {

constexpr unsigned kOfAKindPerSecond = 5;  // lines of a kind
constexpr uint64_t kLogBytes = 1 << 20;

LogDetail log_detail = LogDetail::kInfo;
bool silent = false;
std::string log_path;  // empty: standard error is not ours
uint64_t log_bytes = 0;

struct LogKind {
  time_t second = 0;
  unsigned written = 0;  // in it
  uint64_t left_out = 0;
};

// How many lines of this kind were left out before this one; UINT64_MAX: and this one is, too.
uint64_t LeftOut(const char* format) {
  static std::map<const char*, LogKind> kinds;
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  LogKind& kind = kinds[format];
  if (now.tv_sec != kind.second) kind.second = now.tv_sec, kind.written = 0;
  if (kind.written++ < kOfAKindPerSecond) return std::exchange(kind.left_out, 0);
  kind.left_out++;
  return UINT64_MAX;
}

bool OpenLog() {
  const UniqueFd fd(
      open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
  struct stat st {};
  if (!fd.ok() || fstat(fd.get(), &st) != 0 || dup2(fd.get(), STDERR_FILENO) < 0) return false;
  log_bytes = static_cast<uint64_t>(st.st_size);
  return true;
}

// Where no other name can be given, it is emptied.
void BoundLog() {
  if (log_path.empty() || log_bytes < kLogBytes) return;
  if (rename(log_path.c_str(), (log_path + ".old").c_str()) == 0 && OpenLog()) return;
  (void)!ftruncate(STDERR_FILENO, 0);
  log_bytes = 0;
}

void Wrote(int length) {
  if (length > 0) log_bytes += static_cast<uint64_t>(length);
}

// What others have named may hold what a terminal obeys, or what looks like the next line.
void MakePlain(char* text) {
  for (; *text != 0; ++text) {
    if (*text < ' ' || *text == 0x7f) *text = '?';  // what is above 0x7f is negative here
  }
}

void Write(const char* format, va_list args) {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  tm parts{};
  gmtime_r(&now.tv_sec, &parts);
  char stamp[32];
  strftime(stamp, sizeof(stamp), "%FT%T", &parts);
  char text[512];
  vsnprintf(text, sizeof(text), format, args);
  MakePlain(text);
  BoundLog();
  Wrote(fprintf(stderr, "%s.%03ldZ posternd: %s\n", stamp, now.tv_nsec / 1000000, text));
}

// As many of its kind as may be written.
void WriteSome(LogDetail detail, const char* format, va_list args) {
  if (silent || detail > log_detail) return;
  const uint64_t left_out = log_detail == LogDetail::kDebug ? 0 : LeftOut(format);
  if (left_out == UINT64_MAX) return;
  if (left_out != 0) {
    Wrote(
        fprintf(stderr, "(%llu more like the next)\n", static_cast<unsigned long long>(left_out)));
  }
  Write(format, args);
}

}  // namespace

void SetLogDetail(LogDetail detail) { log_detail = detail; }
void SetSilent() { silent = true; }

bool LogTo(const std::string& path) {
  log_path = path;
  if (OpenLog()) return true;
  log_path.clear();
  return false;
}

void Warn(const char* format, ...) {
  va_list args;
  va_start(args, format);
  WriteSome(LogDetail::kWarn, format, args);
  va_end(args);
}

void Inform(const char* format, ...) {
  va_list args;
  va_start(args, format);
  WriteSome(LogDetail::kInfo, format, args);
  va_end(args);
}

void Note(const char* format, ...) {
  va_list args;
  va_start(args, format);
  WriteSome(LogDetail::kDebug, format, args);
  va_end(args);
}

}  // namespace postern::daemon
