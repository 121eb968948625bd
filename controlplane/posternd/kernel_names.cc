// kernel_names.cc - /proc/net/tcp and tcp6.
// SPDX-License-Identifier: Apache-2.0
#include "kernel_names.h"

#include <arpa/inet.h>
#include <sys/stat.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

namespace postern::daemon {
namespace {

// "0100007F:1F90": words of four bytes in the machine's byte order, then the port.
std::string NameOf(const std::string& text) {
  const size_t colon = text.find(':');
  if (colon != 8 && colon != 32) return "";
  uint8_t ip[16] = {};
  for (size_t word = 0; word < colon / 8; ++word) {
    const uint32_t value =
        static_cast<uint32_t>(strtoul(text.substr(word * 8, 8).c_str(), nullptr, 16));
    memcpy(ip + word * 4, &value, 4);
  }
  static constexpr uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  char name[INET6_ADDRSTRLEN] = "";
  std::string result;
  if (colon == 8) {
    result = inet_ntop(AF_INET, ip, name, sizeof(name));
  } else if (memcmp(ip, kMapped, sizeof(kMapped)) == 0) {
    result = inet_ntop(AF_INET, ip + 12, name, sizeof(name));
  } else {
    result = std::string("[") + inet_ntop(AF_INET6, ip, name, sizeof(name)) + "]";
  }
  const unsigned long port = strtoul(text.c_str() + colon + 1, nullptr, 16);
  return result + ":" + (port != 0 ? std::to_string(port) : "*");
}

// Linux's numbers, ss's names.
const char* StateOf(const std::string& hex) {
  static constexpr const char* kNames[] = {"UNKNOWN",    "ESTAB",      "SYN-SENT",  "SYN-RECV",
                                           "FIN-WAIT-1", "FIN-WAIT-2", "TIME-WAIT", "UNCONN",
                                           "CLOSE-WAIT", "LAST-ACK",   "LISTEN",    "CLOSING"};
  const unsigned long state = strtoul(hex.c_str(), nullptr, 16);
  return state < sizeof(kNames) / sizeof(kNames[0]) ? kNames[state] : kNames[0];
}

}  // namespace

void KernelNames::Load(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);  // the headings
  while (std::getline(file, line)) {
    // sl local rem st queues timer retransmits uid timeout inode
    std::istringstream fields(line);
    std::string sl, local, peer, state, skipped;
    uint64_t inode = 0;
    fields >> sl >> local >> peer >> state >> skipped >> skipped >> skipped >> skipped >> skipped >>
        inode;
    if (inode != 0) by_inode_[inode] = {NameOf(local), NameOf(peer), StateOf(state)};
  }
}

const KernelNames::Entry* KernelNames::Find(pid_t pid, uint32_t fd) {
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
  struct stat st {};
  if (stat(path.c_str(), &st) != 0 || !S_ISSOCK(st.st_mode)) return nullptr;
  if (!loaded_) {
    Load("/proc/self/net/tcp");
    Load("/proc/self/net/tcp6");
    loaded_ = true;
  }
  const auto it = by_inode_.find(st.st_ino);
  return it == by_inode_.end() ? nullptr : &it->second;
}

}  // namespace postern::daemon
