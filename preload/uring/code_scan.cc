// SPDX-License-Identifier: Apache-2.0
// code_scan.cc - see code_scan.h.
#include "code_scan.h"

#include <link.h>
#include <sys/socket.h>

#include <cstring>
#include <initializer_list>

#include "../leaving.h"
#include "base/atomic.h"
#include "family/io_uring.h"
#include "sock/own_family.h"

namespace postern {
namespace {

// Bytes: between number and call the other arguments are loaded, and whatever else the compiler
// likes to have there.
constexpr size_t kNear = 256;

// Segments of code that are looked at. More would be a program of very many own libraries.
constexpr size_t kSegments = 64;
std::span<const uint8_t> segments[kSegments];
size_t segment_count;
uint32_t looked;  // (a)

bool IsSystems(const char* name) {
  for (const char* place : {"/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/"}) {
    if (strncmp(name, place, strlen(place)) == 0) return true;
  }
  return false;
}

int AddObject(dl_phdr_info* object, size_t, void*) {
  if (IsSystems(object->dlpi_name)) return 0;
  const size_t before = segment_count;
  for (size_t i = 0; i < object->dlpi_phnum && segment_count < kSegments; i++) {
    const auto& header = object->dlpi_phdr[i];
    if (header.p_type != PT_LOAD || (header.p_flags & PF_X) == 0) continue;
    const auto* at = reinterpret_cast<const uint8_t*>(object->dlpi_addr + header.p_vaddr);
    const auto self = reinterpret_cast<uintptr_t>(&AddObject) - reinterpret_cast<uintptr_t>(at);
    if (self < header.p_filesz) {  // this library: no ring is made here
      segment_count = before;
      return 0;
    }
    segments[segment_count++] = {at, header.p_filesz};
  }
  return 0;
}

}  // namespace

#if defined(__x86_64__)
// mov $425,%eax, and then syscall.
bool HasRingSetup(std::span<const uint8_t> code) {
  const uint8_t* const end = code.data() + code.size();
  const uint8_t* at = code.data() + 1;
  while (at < end && (at = static_cast<const uint8_t*>(
                          memchr(at, 0xa9, static_cast<size_t>(end - at)))) != nullptr) {
    const auto left = static_cast<size_t>(end - at);
    if (at[-1] == 0xb8 && left > 4 && at[1] == 1 && at[2] == 0 && at[3] == 0 &&
        memmem(at + 4, left - 4 < kNear ? left - 4 : kNear, "\x0f\x05", 2) != nullptr)
      return true;
    at++;
  }
  return false;
}
#elif defined(__aarch64__)
// mov x8 or w8,#425, and then svc #0.
bool HasRingSetup(std::span<const uint8_t> code) {
  const auto word = [&](size_t at) {
    uint32_t value;
    memcpy(&value, &code[at], sizeof value);
    return value;
  };
  for (size_t at = 0; at + 4 <= code.size(); at += 4) {
    if (word(at) != 0xd2803528 && word(at) != 0x52803528) continue;
    for (size_t next = at + 4; next <= at + kNear && next + 4 <= code.size(); next += 4) {
      if (word(next) == 0xd4000001) return true;
    }
  }
  return false;
}
#endif

void LearnProgram() {
  if (!Follows(g_family, IoUring::kFollow)) return;
  dl_iterate_phdr(AddObject, nullptr);
  if (g_family.attached) LookForRing(AF_INET);
}

void LookForRing(int domain) {
  if (LoadRelaxed(looked) != 0) [[likely]]
    return;
  if (domain != AF_INET && domain != AF_INET6) return;
  StoreRelaxed(looked, 1u);
  for (size_t i = 0; i < segment_count; i++) {
    if (!HasRingSetup(segments[i])) continue;
    NoteRing(g_family);
    StepAside(kReasonIoUring);
    return;
  }
}

}  // namespace postern
