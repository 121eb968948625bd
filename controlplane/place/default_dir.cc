// default_dir.cc - a user's runtime directory, where others may have taken its name.
// SPDX-License-Identifier: Apache-2.0
#include "default_dir.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string_view>

namespace postern {
namespace {

constexpr char kTmp[] = "/tmp";
constexpr std::string_view kRandom = "XXXXXX";  // mkdtemp(3)

// sudo keeps XDG_RUNTIME_DIR of the user that called it, and a login without logind has none.
bool IsUsableXdgDir(const char* dir) {
  struct stat status {};
  return dir != nullptr && dir[0] == '/' && stat(dir, &status) == 0 && S_ISDIR(status.st_mode) &&
         status.st_uid == geteuid() && access(dir, W_OK | X_OK) == 0;
}

// lstat: a symbolic link is its maker's, wherever it leads. A file of ours can have been linked
// there by another user, a directory can't.
bool IsOurs(const std::string& path, bool* exists) {
  struct stat status {};
  *exists = lstat(path.c_str(), &status) == 0;
  return *exists && S_ISDIR(status.st_mode) && status.st_uid == geteuid();
}

struct CloseDir {
  void operator()(DIR* dir) const { closedir(dir); }
};

// The first by name, so that all processes of a user find the same one.
std::string FirstOfOurs(const std::string& prefix) {
  const std::unique_ptr<DIR, CloseDir> tmp(opendir(kTmp));
  std::string first;
  while (const dirent* entry = tmp != nullptr ? readdir(tmp.get()) : nullptr) {
    const std::string path = std::string(kTmp) + "/" + entry->d_name;
    bool exists = false;
    if (path.size() == prefix.size() + kRandom.size() && path.starts_with(prefix) &&
        (first.empty() || path < first) && IsOurs(path, &exists))
      first = path;
  }
  return first;
}

std::string MakeOne(const std::string& prefix) {
  std::string path = prefix + std::string(kRandom);
  if (mkdtemp(path.data()) == nullptr) return "";
  std::string first = FirstOfOurs(prefix);  // another process of ours may have made one meanwhile
  if (first == path || first.empty()) return path;
  (void)rmdir(path.c_str());
  return first;
}

}  // namespace

std::string DefaultRuntimeDir(bool make) {
  const char* xdg = getenv("XDG_RUNTIME_DIR");
  if (IsUsableXdgDir(xdg)) return std::string(xdg) + "/postern";
  std::string plain = std::string(kTmp) + "/postern-" + std::to_string(geteuid());
  bool exists = false;
  if (IsOurs(plain, &exists)) return plain;
  const std::string prefix = plain + "-";
  std::string own = FirstOfOurs(prefix);
  if (!own.empty()) return own;
  if (!exists) return plain;
  return make ? MakeOne(prefix) : "";
}

}  // namespace postern
