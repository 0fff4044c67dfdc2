/**
 * The physical limit of `$execute`: a job added to BullMQ, answered by an empty processor over pub/sub. The processor
 * is this file, too, in a separate process.
 */
import { fork } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { Queue, Worker } from 'bullmq'
import { Redis } from 'ioredis'

const NAME = 'bench-raw'
const GONE = { removeOnComplete: { count: 0 }, removeOnFail: { count: 0 } }

interface RawQueue {
  roundTrip(input: string): Promise<boolean>
  close(): Promise<void>
}

export async function openRawQueue(redisUrl: string): Promise<RawQueue> {
  const worker = fork(import.meta.filename, { env: { ...process.env, REDIS_URL: redisUrl } })
  await once(worker, 'message')
  const connection = new Redis(redisUrl)
  const queue = new Queue(NAME, { connection })
  const subscriber = new Redis(redisUrl)
  const reply = `${NAME}:${randomUUID()}`
  const waiting = new Map<string, () => void>()
  await subscriber.subscribe(reply)
  subscriber.on('message', (_channel, text) => {
    const { id } = JSON.parse(text) as { id: string }
    waiting.get(id)?.()
    waiting.delete(id)
  })
  return {
    async roundTrip(input) {
      const jobId = randomUUID()
      const answered = new Promise<void>((resolve) => waiting.set(jobId, resolve))
      await queue.add('run', { reply, input }, { jobId, ...GONE })
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

async function answerAll(redisUrl: string): Promise<void> {
  const replies = new Redis(redisUrl)
  const answer = ({ id, data }: { id?: string; data: { reply: string; input: string } }) =>
    replies.publish(data.reply, JSON.stringify({ id, result: data.input }))
  const connection = new Redis(redisUrl, { maxRetriesPerRequest: null })
  const worker = new Worker(NAME, answer, { connection, concurrency: 8, ...GONE })
  await worker.waitUntilReady()
  process.send?.('ready')
}

if (import.meta.main) await answerAll(process.env.REDIS_URL ?? '')
