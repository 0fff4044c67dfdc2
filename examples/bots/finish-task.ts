/**
 * Input: `{ task, note }`. Completes the Task by a patch that fails if another client has changed the Task in between.
 */
import { type BotEvent, type MedplumClient, normalizeErrorString } from '@medplum/core'

export async function handler(
  medplum: MedplumClient,
  event: BotEvent<{ task: string; note: string }>,
) {
  const { task, note } = event.input
  const { status } = await medplum.readResource('Task', task)
  if (status === 'completed') return { done: false, why: 'It was completed before' }
  try {
    const patched = await medplum.patchResource('Task', task, [
      { op: 'test', path: '/status', value: status },
      { op: 'replace', path: '/status', value: 'completed' },
      { op: 'add', path: '/note', value: [{ text: note, time: new Date().toISOString() }] },
    ])
    return { done: true, version: patched.meta?.versionId }
  } catch (error) {
    return { done: false, why: normalizeErrorString(error) }
  }
}
