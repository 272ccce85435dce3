// Random 4 KiB O_DIRECT reads by N threads: what the disk gives at queue depth N, where fio is not installed.
// Usage: randread FILE DEPTH SECONDS  ->  one line of JSON. Build: g++ -O2 -std=c++20 -pthread randread.cpp
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

int main(int argc, char** argv) {
  if (argc != 4) return std::fprintf(stderr, "usage: randread FILE DEPTH SECONDS\n"), 2;
  const int depth = std::atoi(argv[2]);
  const double seconds = std::atof(argv[3]);
  const int fd = open(argv[1], O_RDONLY | O_DIRECT | O_CLOEXEC);
  if (fd < 0) return std::perror("open O_DIRECT"), 1;
  struct stat info {};
  if (fstat(fd, &info) != 0) return std::perror("fstat"), 1;
  const auto pages = static_cast<unsigned long>(info.st_size / 4096);
  std::vector<std::vector<float>> latencies(static_cast<std::size_t>(depth));
  std::atomic<bool> stop{false}, failed{false};
  std::vector<std::thread> threads;
  for (int idx = 0; idx < depth; ++idx)
    threads.emplace_back([&, idx] {
      std::mt19937_64 random(static_cast<unsigned long>(idx) + 12345);
      void* page = std::aligned_alloc(4096, 4096);
      while (!stop) {
        const auto start = std::chrono::steady_clock::now();
        if (pread(fd, page, 4096, static_cast<off_t>(random() % pages * 4096)) != 4096) failed = stop = true;
        const std::chrono::duration<float, std::micro> took = std::chrono::steady_clock::now() - start;
        latencies[static_cast<std::size_t>(idx)].push_back(took.count());
      }
      std::free(page);
    });
  const auto start = std::chrono::steady_clock::now();
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  stop = true;
  for (auto& thread : threads) thread.join();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  if (failed) return std::fprintf(stderr, "a read failed\n"), 1;
  std::vector<float> all;
  for (const auto& part : latencies) all.insert(all.end(), part.begin(), part.end());
  std::sort(all.begin(), all.end());
  const auto at = [&](double q) { return all[static_cast<std::size_t>(q * static_cast<double>(all.size() - 1))]; };
  std::printf("{\"depth\": %d, \"seconds\": %.3f, \"reads\": %zu, \"iops\": %.0f, \"p50_us\": %.1f, \"p99_us\": %.1f}\n",
              depth, took.count(), all.size(), static_cast<double>(all.size()) / took.count(), at(0.5), at(0.99));
}
