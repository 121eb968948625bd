// SPDX-License-Identifier: Apache-2.0
// log_sink.h - where the lines of a program's log go: standard error, a file, or the journal.
//
// Nothing is kept open: a program may close any number, and give it to a file of its own. A line
// opens what it is written to at a high number, close-on-exec, and closes it. Standard error is
// written to only while it is the file that it was when the process began. No write waits for a
// reader, raises a signal, or touches errno. Async-signal-safe.
#pragma once
#include "base/log/log_line.h"
#include "base/schema/options.h"

namespace postern {

// A process's own; one for each family of it.
struct LogState {
  LogLevel level = LogLevel::kNone;  // what is written: it, and what is more severe
  uint64_t stderr_dev = 0, stderr_ino = 0;
  uint64_t said = 0;      // (a) a bit for each reason whose first fallback was told
  uint64_t written = 0;   // (a) the second, shifted by 32, and the lines that were written in it
  uint32_t left_out = 0;  // (a) lines that were too many, since the last one that was written
};

// What these options ask for: log.level where it is given, `warn` where there is a file, `error`
// where strict turns fallbacks into errors; else nothing.
LogLevel LogLevelOf(const Options& options);
// Learns what standard error is.
void LogBegin(LogState& log, const Options& options);
// Writes "TIME process PID: TEXT" or what the place takes. `text` has no line's end. A process
// writes ten lines in a second, and says how many it has left out.
void LogWrite(LogState& log, const Options& options, LogLevel level, const LogLine& text);

// log.file means the journal, or standard error by name.
inline constexpr char kLogToJournal[] = "journal", kLogToStderr[] = "stderr";

}  // namespace postern
