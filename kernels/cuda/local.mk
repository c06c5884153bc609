# kernels/cuda/ - the CUDA module, loaded by dlopen from where the library is. The runtime is linked statically, the driver not at all.
cuda_units = kernels/cuda/combine.cu kernels/cuda/dispatch.cu kernels/cuda/engines.cu kernels/cuda/expert_combine.cu kernels/cuda/expert_dispatch.cu \
	kernels/cuda/expert_place.cu kernels/cuda/far_combine.cu kernels/cuda/far_dispatch.cu kernels/cuda/far_expert_combine.cu kernels/cuda/far_expert_dispatch.cu \
	kernels/cuda/ll_combine.cu kernels/cuda/ll_dispatch.cu kernels/cuda/ll_far.cu kernels/cuda/ll_route.cu \
	kernels/cuda/module.cu kernels/cuda/p2p.cu kernels/cuda/route.cu
cuda_headers = kernels/cuda/copy.cuh kernels/cuda/device.cuh kernels/cuda/elem.cuh kernels/cuda/engines.cuh kernels/cuda/expert.cuh \
	kernels/cuda/expert_combine.cuh kernels/cuda/expert_rows.cuh kernels/cuda/expert_sum.cuh kernels/cuda/far.cuh kernels/cuda/far_expert.cuh kernels/cuda/hop.cuh kernels/cuda/quant.cuh kernels/cuda/sums.cuh \
	kernels/cuda/expert_route.cuh kernels/cuda/launch.h kernels/cuda/ll.cuh kernels/cuda/ll_block.cuh kernels/cuda/ll_call.cuh kernels/cuda/ll_room.cuh kernels/cuda/ll_route.cuh kernels/cuda/ll_sum.cuh kernels/cuda/ll_team.cuh \
	kernels/cuda/ll_tokens.cuh kernels/cuda/ring.cuh
cuda_deps = kernels/cuda/cuda_module.h include/mpix_device.cuh include/mpix_device.h $(cuda_headers)
EXTRA_DIST += $(cuda_units) $(cuda_headers)
CLEANFILES += libmpixep_cuda.so $(cuda_units:.cu=.nv.o)

if HAVE_CUDA
cudamoduledir = $(libdir)
cudamodule_DATA = libmpixep_cuda.so

kernels/cuda/combine.nv.o: kernels/cuda/combine.cu $(cuda_deps)
kernels/cuda/dispatch.nv.o: kernels/cuda/dispatch.cu $(cuda_deps)
kernels/cuda/expert_combine.nv.o: kernels/cuda/expert_combine.cu $(cuda_deps)
kernels/cuda/expert_dispatch.nv.o: kernels/cuda/expert_dispatch.cu $(cuda_deps)
kernels/cuda/expert_place.nv.o: kernels/cuda/expert_place.cu $(cuda_deps)
kernels/cuda/far_combine.nv.o: kernels/cuda/far_combine.cu $(cuda_deps)
kernels/cuda/far_dispatch.nv.o: kernels/cuda/far_dispatch.cu $(cuda_deps)
kernels/cuda/far_expert_combine.nv.o: kernels/cuda/far_expert_combine.cu $(cuda_deps)
kernels/cuda/far_expert_dispatch.nv.o: kernels/cuda/far_expert_dispatch.cu $(cuda_deps)
kernels/cuda/engines.nv.o: kernels/cuda/engines.cu $(cuda_deps)
kernels/cuda/ll_combine.nv.o: kernels/cuda/ll_combine.cu $(cuda_deps)
kernels/cuda/ll_dispatch.nv.o: kernels/cuda/ll_dispatch.cu $(cuda_deps)
kernels/cuda/ll_far.nv.o: kernels/cuda/ll_far.cu $(cuda_deps)
kernels/cuda/ll_route.nv.o: kernels/cuda/ll_route.cu $(cuda_deps)
kernels/cuda/module.nv.o: kernels/cuda/module.cu $(cuda_deps)
kernels/cuda/p2p.nv.o: kernels/cuda/p2p.cu $(cuda_deps)
kernels/cuda/route.nv.o: kernels/cuda/route.cu $(cuda_deps)
$(cuda_units:.cu=.nv.o):
	$(AM_V_GEN)$(MKDIR_P) kernels/cuda && \
	  $(NVCC) -std=c++17 $(NVCCFLAGS) $(NVCC_GENCODE) -I$(top_srcdir)/include -Xcompiler -fPIC,-fvisibility=default -c -o $@ $(top_srcdir)/kernels/cuda/`basename $@ .nv.o`.cu

libmpixep_cuda.so: $(cuda_units:.cu=.nv.o)
	$(AM_V_GEN)$(NVCC) $(NVCC_GENCODE) -shared -o $@ $(cuda_units:.cu=.nv.o)
endif
