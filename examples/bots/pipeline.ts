/**
 * Input: `{ patient, steps }`, where each step is the identifier of a bot. Each bot gets the answer of the one before;
 * the first failure ends the pipeline.
 */
import { type BotEvent, type MedplumClient, normalizeErrorString } from '@medplum/core'

interface Work {
  readonly value: unknown
  readonly steps: { readonly system: string; readonly value: string }[]
}

export async function handler(medplum: MedplumClient, event: BotEvent<Work>) {
  let { value } = event.input
  const done: string[] = []
  for (const step of event.input.steps) {
    try {
      value = await medplum.executeBot(step, value, 'application/json')
    } catch (error) {
      return { done, failed: step.value, why: normalizeErrorString(error) }
    }
    done.push(step.value)
  }
  return { done, value }
}
