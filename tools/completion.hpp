// SPDX-License-Identifier: Apache-2.0
// Completion scripts for shells, made from the table of verbs and options. So they know every option. `shmbroker
// completion SHELL` prints one; the build installs all three.
#pragma once

#include <string>
#include <string_view>

#include "base/result.hpp"

namespace CLI {
class App;
}

namespace shmb::tools {

// `shell` is bash, zsh or fish. For any other, the error lists these.
Result<std::string> completion(const CLI::App& app, std::string_view shell);

}  // namespace shmb::tools
