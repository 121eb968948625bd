// user_dir.cc - finds, creates and checks the runtime directory.
// SPDX-License-Identifier: Apache-2.0
#include "user_dir.h"

#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "../place/default_dir.h"
#include "say.h"

namespace postern::wrapper {
namespace {

constexpr char kSocketName[] = "/posternd.sock";
constexpr char kVariable[] = "POSTERN_RUNTIME_DIR";

std::string Choose() {
  const char* given = getenv(kVariable);
  if (given != nullptr && *given != '\0') {
    if (*given != '/') {
      Die(kExitUsage, std::string("POSTERN_RUNTIME_DIR must be an absolute path: ") + given);
    }
    return given;
  }
  return DefaultRuntimeDir(true);
}

std::string CannotCreate(const std::string& dir) {
  const int error = errno;
  return "cannot create runtime directory " + (dir.empty() ? "in /tmp" : dir) + ": " +
         ErrorText(error);
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

std::string RuntimeDir(std::string& why_not) {
  std::string dir = Choose();
  if (dir.size() + sizeof(kSocketName) > sizeof(sockaddr_un::sun_path)) {
    Die(kExitOurselves, "runtime directory " + dir + ": path too long for a socket in it");
  }
  // Once more, if another user has made it since.
  for (int i = 0; i < 2 && mkdir(dir.c_str(), 0700) != 0; i++, dir = Choose()) {
    if (errno == EEXIST) continue;
    const std::string problem = CannotCreate(dir);
    if (getenv(kVariable) != nullptr) Die(kExitOurselves, problem);
    why_not = problem;
    return "";
  }
  Check(dir);
  return dir;
}

}  // namespace postern::wrapper
