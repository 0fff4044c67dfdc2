/** What a Bot says of its runs has to be something that a run can be given (bots.md §1). */
import { badRequest } from '../errors.ts'
import { isObject, type Resource } from './resource.ts'
import { scheduleOf } from './schedule.ts'

const LIMIT =
  /\/fhir\/StructureDefinition\/bot-(memoryMb|cpuMs|maxConcurrency|maxQueueSeconds|retry)$/

/** Errors: 400 with the element at fault, for limits that allow nothing and times that never come. */
export function checkBot(bot: Resource): void {
  if (bot.timeout !== undefined && !isPositive(bot.timeout)) {
    throw badRequest('timeout must be a positive integer: seconds', 'Bot.timeout')
  }
  const extensions: readonly unknown[] = Array.isArray(bot.extension) ? bot.extension : []
  for (const [index, item] of extensions.entries()) {
    if (!isObject(item)) continue
    const [, name] = LIMIT.exec(String(item.url)) ?? []
    const value = item.valueInteger ?? item.valuePositiveInt ?? item.valueUnsignedInt
    if (name !== undefined && !isPositive(value)) {
      throw badRequest(`bot-${name} must be a positive integer`, `Bot.extension[${index}]`)
    }
  }
  scheduleOf(bot)
}

function isPositive(value: unknown): boolean {
  return Number.isInteger(value) && Number(value) > 0
}
