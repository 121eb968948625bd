// SPDX-License-Identifier: Apache-2.0
// telling.cc - see telling.h.
#include "family/telling.h"

#include "base/ip_address.h"
#include "base/log/trace.h"

namespace postern {
namespace {

// What every program meets that talks to others than Postern's is no warning.
LogLevel LevelOf(Reason reason) {
  const bool is_plain = reason == kReasonNotLocal || reason == kReasonKernelClient;
  return is_plain ? LogLevel::kInfo : LogLevel::kWarn;
}

void AddReason(LogLine& line, Reason reason, const pstn_addr* to) {
  char text[kAddrTextBytes];
  if (to != nullptr) line << " to " << AddrText(*to, text);
  line << ": " << ReasonName(reason) << ": " << ReasonText(reason);
}

}  // namespace

void TellFallback(Family& fam, Reason reason, int fd, const pstn_addr* to) {
  PSTN_TRACE2(left_to_kernel, fd, static_cast<uint32_t>(reason));
  static_assert(kReasonCount <= 64);
  if (!Logs(fam, LevelOf(reason))) return;
  const uint64_t bit = uint64_t{1} << reason;
  if ((FetchOr(fam.log.said, bit) & bit) != 0) return;
  LogLine line;
  line << "leaves to the kernel";
  if (fd >= 0) line << " descriptor " << static_cast<uint64_t>(fd);
  AddReason(line, reason, to);
  LogWrite(fam.log, fam.opt, LevelOf(reason), line);
}

void LogText(Family& fam, LogLevel level, const char* text, const char* more) {
  if (!Logs(fam, level)) return;
  LogLine line;
  line << text << more;
  LogWrite(fam.log, fam.opt, level, line);
}

void NoteFallback(Family& fam, Reason reason, int fd, const pstn_addr* to) {
  if (fam.attached) FetchAdd(Stack(fam).hdr.reasons[reason], pstn_u64{1});
  TellFallback(fam, reason, fd, to);
}

void LogStrict(Family& fam, Reason reason, const pstn_addr* to) {
  if (!Logs(fam, LogLevel::kError)) return;
  LogLine line;
  line << "may not connect (strict)";
  AddReason(line, reason, to);
  LogWrite(fam.log, fam.opt, LogLevel::kError, line);
}

}  // namespace postern
