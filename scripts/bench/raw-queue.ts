/** The physical limit of `$execute`: add a job to BullMQ, an empty processor answers over pub/sub. */
import { fork } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import path from 'node:path'
import { Queue } from 'bullmq'
import { Redis } from 'ioredis'

export interface RawQueue {
  /** One round trip with a payload of the given text. */
  roundTrip(input: string): Promise<boolean>
  close(): Promise<void>
}

export async function openRawQueue(redisUrl: string): Promise<RawQueue> {
  const worker = fork(path.join(import.meta.dirname, 'raw-worker.ts'), {
    env: { ...process.env, REDIS_URL: redisUrl },
  })
  await once(worker, 'message')
  const connection = new Redis(redisUrl)
  const queue = new Queue('bench-raw', { connection })
  const subscriber = new Redis(redisUrl)
  const channel = `bench-raw:${randomUUID()}`
  const waiting = new Map<string, () => void>()
  await subscriber.subscribe(channel)
  subscriber.on('message', (_channel, text) => {
    const { id } = JSON.parse(text) as { id: string }
    waiting.get(id)?.()
    waiting.delete(id)
  })
  return {
    async roundTrip(input) {
      const jobId = randomUUID()
      const answered = new Promise<void>((resolve) => waiting.set(jobId, resolve))
      await queue.add(
        'run',
        { reply: channel, input },
        { jobId, removeOnComplete: { count: 0 }, removeOnFail: { count: 0 } },
      )
      await answered
      return true
    },
    async close() {
      worker.kill()
      await queue.close()
      connection.disconnect()
      subscriber.disconnect()
    },
  }
}
