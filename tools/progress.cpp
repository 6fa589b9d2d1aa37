// SPDX-License-Identifier: Apache-2.0
// See progress.hpp.
#include "tools/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <span>

#include "base/sys_process.hpp"
#include "base/text.hpp"
#include "tools/printable.hpp"
#include "tools/tool.hpp"

namespace shmb::tools {
namespace {

constexpr std::uint64_t kWorthIt = 64ULL << 20;
constexpr std::int64_t kRedraw = 100'000'000;

void draw(const std::string& text) { (void)sys::write_all(STDERR_FILENO, std::as_bytes(std::span(text))); }

}  // namespace

Progress::Progress(std::string what, std::uint64_t total, bool wanted)
    : what_(printable(what)),
      total_(total),
      on_(wanted && total >= kWorthIt && is_terminal(STDERR_FILENO)),
      started_(sys::now_monotonic()) {}

Progress::~Progress() {
  if (drawn_ != 0) draw("\r\x1b[K");
}

void Progress::at(std::uint64_t done) {
  const std::int64_t now = sys::now_monotonic();
  if (!on_ || now - drawn_ < kRedraw) return;
  drawn_ = now;
  constexpr int width = 24;
  const auto share = static_cast<double>(done) / static_cast<double>(total_);
  const int full = std::clamp(static_cast<int>(share * width), 0, width);
  const double seconds = std::max(static_cast<double>(now - started_) / 1e9, 1e-3);
  draw(fmt::format("\r{} [{}{}] {:3.0f}%  {} of {}  {}/s\x1b[K", what_, std::string(full, '#'),
                   std::string(width - full, '.'), share * 100, format_size(done), format_size(total_),
                   format_size(static_cast<std::uint64_t>(static_cast<double>(done) / seconds))));
}

}  // namespace shmb::tools
