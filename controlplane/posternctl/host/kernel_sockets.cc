// kernel_sockets.cc - see kernel_sockets.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernel_sockets.h"

#include <dirent.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <sstream>

#include "base/ip_address.h"
#include "process_look.h"

namespace postern::ctl_command {
namespace {

constexpr unsigned kListen = 10;  // include/net/tcp_states.h
constexpr size_t kTableBytesMax = size_t{256} << 20;

// "0100007F:1F90" or 32 digits: words of four bytes, each in the order of the machine.
bool ParseName(const std::string& text, pstn_addr& name) {
  const size_t colon = text.find(':');
  if (colon != 8 && colon != 32) return false;
  uint8_t bytes[16];
  for (size_t at = 0; at < colon; at += 8) {
    const auto word = static_cast<uint32_t>(strtoul(text.substr(at, 8).c_str(), nullptr, 16));
    memcpy(bytes + at / 2, &word, sizeof word);
  }
  const auto port = static_cast<uint16_t>(strtoul(text.c_str() + colon + 1, nullptr, 16));
  name = NameOf(colon == 8 ? Ipv4At(bytes) : IpAt(bytes), port);
  return true;
}

void AddTable(const std::string& path, std::vector<KernelSocket>& all) {
  std::istringstream lines(ReadWhole(path, kTableBytesMax));
  std::string line;
  std::getline(lines, line);  // the headings
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    std::string number, local, peer, state, skipped;
    KernelSocket socket;
    words >> number >> local >> peer >> state;
    for (int i = 0; i < 5; ++i) words >> skipped;
    pstn_addr here{}, there{};
    if (!(words >> socket.inode) || !ParseName(local, here) || !ParseName(peer, there)) continue;
    char text[kAddrTextBytes];
    socket.local = AddrText(here, text);
    socket.peer = AddrText(there, text);
    socket.local_port = here.port;
    socket.peer_port = there.port;
    socket.listens = strtoul(state.c_str(), nullptr, 16) == kListen;
    all.push_back(std::move(socket));
  }
}

}  // namespace

std::vector<KernelSocket> SocketsSeenBy(pid_t pid) {
  std::vector<KernelSocket> all;
  const std::string net = "/proc/" + std::to_string(pid) + "/net/";
  AddTable(net + "tcp", all);
  AddTable(net + "tcp6", all);
  return all;
}

std::map<uint64_t, int> SocketNumbersOf(pid_t pid) {
  std::map<uint64_t, int> numbers;
  const std::string path = "/proc/" + std::to_string(pid) + "/fd";
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir(path.c_str()), closedir);
  while (const dirent* entry = dir != nullptr ? readdir(dir.get()) : nullptr) {
    char text[64];
    const ssize_t n = readlink((path + "/" + entry->d_name).c_str(), text, sizeof text - 1);
    text[n > 0 ? n : 0] = 0;
    unsigned long inode = 0;
    if (sscanf(text, "socket:[%lu]", &inode) == 1) numbers.emplace(inode, atoi(entry->d_name));
  }
  return numbers;
}

}  // namespace postern::ctl_command
