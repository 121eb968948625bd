// user_dir.cc - finds, creates and checks the runtime directory.
// SPDX-License-Identifier: Apache-2.0
#include "user_dir.h"

#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "say.h"

namespace postern::wrapper {
namespace {

constexpr char kSocketName[] = "/posternd.sock";

// sudo keeps XDG_RUNTIME_DIR of the user that called it, and a login without logind has none.
bool IsUsableXdgDir(const char* dir) {
  struct stat status {};
  return dir != nullptr && dir[0] == '/' && stat(dir, &status) == 0 && S_ISDIR(status.st_mode) &&
         status.st_uid == geteuid() && access(dir, W_OK | X_OK) == 0;
}

std::string Choose() {
  const char* given = getenv("POSTERN_RUNTIME_DIR");
  if (given != nullptr && *given != '\0') {
    if (*given != '/') {
      Die(kExitUsage, std::string("POSTERN_RUNTIME_DIR must be an absolute path: ") + given);
    }
    return given;
  }
  const char* xdg = getenv("XDG_RUNTIME_DIR");
  if (IsUsableXdgDir(xdg)) return std::string(xdg) + "/postern";
  return "/tmp/postern-" + std::to_string(geteuid());
}

// lstat: a symlink in /tmp may have been put there by any user. Once the directory itself is seen
// to be ours, the sticky bit keeps others from replacing it.
void Check(const std::string& dir) {
  struct stat status {};
  if (lstat(dir.c_str(), &status) != 0) {
    Die(kExitOurselves, "runtime directory " + dir + ": " + ErrorText(errno));
  }
  const char* reason = nullptr;
  if (S_ISLNK(status.st_mode)) {
    reason = "is a symbolic link";
  } else if (!S_ISDIR(status.st_mode)) {
    reason = "is not a directory";
  } else if (status.st_uid != geteuid()) {
    reason = "belongs to another user";
  } else if ((status.st_mode & 077) != 0) {
    reason = "is open to other users (make it 0700)";
  }
  if (reason != nullptr)
    Die(kExitOurselves, "refusing runtime directory " + dir + ": it " + reason);
}

}  // namespace

std::string RuntimeDir() {
  std::string dir = Choose();
  if (dir.size() + sizeof(kSocketName) > sizeof(sockaddr_un::sun_path)) {
    Die(kExitOurselves, "runtime directory " + dir + ": path too long for a socket in it");
  }
  if (mkdir(dir.c_str(), 0700) != 0 && errno != EEXIST) {
    Die(kExitOurselves, "cannot create runtime directory " + dir + ": " + ErrorText(errno));
  }
  Check(dir);
  return dir;
}

}  // namespace postern::wrapper
