// SPDX-License-Identifier: Apache-2.0
// A part of a region for a network card: where the device can, the memory was made for it and the part is whole pages;
// else refused with what to do. The fake's dma-buf is a file whose position is the part's begin.
#include <fcntl.h>
#include <unistd.h>

#include "tests/cuda/meeting.hpp"

namespace cuda_tests {

TEST_CASE("a part of a region made for network cards has a dma-buf, here and where it is imported") {
  const Meeting meeting;
  CHECK(Child::run([&] {
          ::setenv("FAKECUDA_ATTRIBUTE", "124:1", 1);
          auto session = meeting.member(), other = meeting.member();
          {
            Worker worker;
            ACTOR_CHECK((gpu::devices()[0].flags & SHMB_GPU_DEVICE_DMA_BUF) != 0);
            gpu::AllocateOptions rdma;
            rdma.rdma = true;
            auto region = gpu::Region::allocate(session, 2 * kMiB, rdma);
            ACTOR_CHECK(worker.fill(region.pointer() + 8192, 4096, 0x42) == 0);
            ACTOR_MUST(region.try_publish({.name = "ring"}));
            auto imported = gpu::Region::import(other, std::string("ring"));
            for (gpu::Region* const one : {&region, &imported}) {
              auto made = one->try_dma_buf(8192, 4096);
              ACTOR_MUST(made);
              const int fd = *made;
              ACTOR_CHECK((::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
              unsigned char bytes[4096] = {};
              ACTOR_CHECK(::read(fd, bytes, sizeof bytes) == sizeof bytes);
              ACTOR_CHECK(bytes[0] == 0x42 && bytes[4095] == 0x42);
              ::close(fd);
              for (const auto& [offset, length] : {std::pair<std::uint64_t, std::uint64_t>{0, 0},
                                                   {1, 4096},
                                                   {0, 4095},
                                                   {2 * kMiB, 4096},
                                                   {0, 2 * kMiB + 4096},
                                                   {UINT64_MAX - 4095, 4096}}) {
                const auto refused = one->try_dma_buf(offset, length);
                ACTOR_CHECK(status_of(refused) == Status::invalid);
                ACTOR_CHECK(sentence_of(refused).contains("whole pages"));
              }
            }
            {
              const fakecuda::Injected failing("cuMemGetHandleForAddressRange:1:801");
              const auto refused = region.try_dma_buf(0, 4096);
              ACTOR_CHECK(status_of(refused) == Status::not_supported);
              ACTOR_CHECK(sentence_of(refused).contains("cuMemGetHandleForAddressRange"));
            }
            ACTOR_MUST(imported.try_sleep());
            ACTOR_CHECK(status_of(imported.try_dma_buf(0, 4096)) == Status::invalid);
            auto plain = gpu::Region::allocate(session, 2 * kMiB);
            const auto refused = plain.try_dma_buf(0, 4096);
            ACTOR_CHECK(status_of(refused) == Status::not_supported);
            ACTOR_CHECK(sentence_of(refused).contains("AllocateOptions::rdma"));
          }
          ACTOR_CHECK(eventually([&] { return gpu::dispatch(session).waiting + gpu::dispatch(other).waiting == 0; }));
          const auto audit = fakecuda::Fake::use().audit();
          ACTOR_CHECK(audit.left() == 0 && audit.violations == 0 && audit.fds == 0);
          return 0;
        }).wait() == 0);
}

TEST_CASE("a device without dma-bufs, or without memory for network cards, says so") {
  const Meeting meeting;
  CHECK(Child::run([&] {
          ::setenv("FAKECUDA_ATTRIBUTE", "124:0,110:0", 1);
          auto session = meeting.member();
          gpu::AllocateOptions rdma;
          rdma.rdma = true;
          const auto none = gpu::Region::try_allocate(session, kMiB, rdma);
          ACTOR_CHECK(status_of(none) == Status::not_supported);
          ACTOR_CHECK(sentence_of(none).contains("network cards"));
          auto region = gpu::Region::allocate(session, kMiB);
          const auto refused = region.try_dma_buf(0, 4096);
          ACTOR_CHECK(status_of(refused) == Status::not_supported);
          ACTOR_CHECK(sentence_of(refused).contains("dma-buf"));
          return 0;
        }).wait() == 0);
}

TEST_CASE(
    "torch's blocks are made for network cards where the device has such memory, and made all the same elsewhere") {
  const Meeting meeting;
  const auto dma_buf_of_block = [&](const char* attributes, Status expected) {
    return Child::run([&] {
             ::setenv("FAKECUDA_ATTRIBUTE", attributes, 1);
             auto session = meeting.member();
             void* const block = shmb_torch_alloc(2 * kMiB, 0, nullptr);
             ACTOR_CHECK(block != nullptr);
             auto region = gpu::Region::of_torch(session, block);
             const auto made = region.try_dma_buf(0, 4096);
             ACTOR_CHECK(status_of(made) == expected);
             if (made) ::close(*made);
             region.release();
             shmb_torch_free(block, 2 * kMiB, 0, nullptr);
             return 0;
           })
        .wait();
  };
  CHECK(dma_buf_of_block("124:1,110:1", Status::ok) == 0);
  CHECK(dma_buf_of_block("124:1,110:0", Status::not_supported) == 0);
}

}  // namespace cuda_tests
