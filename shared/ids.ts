/** Ids of resources: UUID version 7 (RFC 9562 §5.7), so that new rows land side by side in an index. */
import { randomFillSync } from 'node:crypto'

const random = Buffer.allocUnsafe(4096)
let used = random.length

export function newId(now = Date.now()): string {
  if (used + 10 > random.length) {
    randomFillSync(random)
    used = 0
  }
  const tail = random.toString('hex', used, used + 10)
  used += 10
  const time = now.toString(16).padStart(12, '0')
  const variant = ((Number.parseInt(tail.charAt(3), 16) & 3) | 8).toString(16)
  return `${time.slice(0, 8)}-${time.slice(8)}-7${tail.slice(0, 3)}-${variant}${tail.slice(4, 7)}-${tail.slice(7, 19)}`
}
