// log.cc - lines with a time stamp on stderr.
// SPDX-License-Identifier: Apache-2.0
#include "log.h"

#include <time.h>

#include <cstdarg>
#include <cstdio>

namespace postern::daemon {
namespace {

constexpr unsigned kWarningsPerSecond = 20;  // others can cause them, and fill a disk

bool verbose_on = false, silent = false;
time_t this_second = 0;
unsigned warnings = 0;  // in it

bool TooManyWarnings() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  if (now.tv_sec != this_second) this_second = now.tv_sec, warnings = 0;
  return warnings++ >= kWarningsPerSecond;
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
  fprintf(stderr, "%s.%03ldZ posternd: %s\n", stamp, now.tv_nsec / 1000000, text);
}

}  // namespace

void SetVerbose(bool verbose) { verbose_on = verbose; }
void SetSilent() { silent = true; }

void Warn(const char* format, ...) {
  if (silent || (!verbose_on && TooManyWarnings())) return;
  va_list args;
  va_start(args, format);
  Write(format, args);
  va_end(args);
}

void Note(const char* format, ...) {
  if (!verbose_on) return;
  va_list args;
  va_start(args, format);
  Write(format, args);
  va_end(args);
}

}  // namespace postern::daemon
