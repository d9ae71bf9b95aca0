trl grpo --accelerate_config zero3 --num_processes 8 \
    --model_name_or_path Qwen/Qwen3-0.6B \
    --use_vllm true \
    --vllm_mode colocate \
    --vllm_enable_sleep_mode true \
    --per_device_train_batch_size 1 \
    --num_generations 4 \
    --max_completion_length 16384
