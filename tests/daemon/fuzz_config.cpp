// SPDX-License-Identifier: Apache-2.0
// libFuzzer: any text as a configuration file. It is taken or refused in words that name the file. One text in sixteen
// is read a second time, and has the same outcome. docs/testing.md (Long runs) says how a target is built and run.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "daemon/start/config.hpp"

namespace {

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) { return 0; }

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shmb::daemon;
  static unsigned inputs = 0;
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto parsed = parse_config(text, "fuzz.toml", {});
  if (!parsed) {
    require(parsed.error().status == shmb::Status::invalid, "a refusal of another kind than invalid");
    require(parsed.error().sentence.find("fuzz.toml") != std::string::npos, "a refusal that does not name the file");
  } else {
    require(parsed->hello_timeout > 0 && parsed->unread_timeout > 0, "a time that never comes");
    require(parsed->socket_mode <= 07777, "a mode that is none");
  }
  if (++inputs % 16 != 0) return 0;
  const auto again = parse_config(text, "fuzz.toml", {});
  require(parsed.has_value() == again.has_value(), "one text was taken and refused");
  if (!parsed) require(parsed.error().sentence == again.error().sentence, "two refusals of one text");
  else
    require(parsed->limits.host_bytes == again->limits.host_bytes && parsed->directory == again->directory,
            "two configurations of one text");
  return 0;
}
