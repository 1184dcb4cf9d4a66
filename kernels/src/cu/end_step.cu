// Runs that emit nothing move their seat's position; the others were moved by `sample`. One block, a thread a run.
#include "prelude.cuh"

extern "C" __global__ void __launch_bounds__(1024) end_step(const StepInfo *step, const RunInfo *runs, SeatState *seats) {
    wait_previous();
    for (int r = threadIdx.x; r < step->runs; r += blockDim.x)
        if (runs[r].emit < 0) seats[runs[r].seat].position = runs[r].end;
}
