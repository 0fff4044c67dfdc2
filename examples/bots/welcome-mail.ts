/**
 * Input: a Patient. Sends a mail to the patient's first address and records it as a Communication. The bot's
 * membership must be a project administrator's: only those may send mail.
 */
import { type BotEvent, createReference, formatGivenName, type MedplumClient } from '@medplum/core'
import type { Patient } from '@medplum/fhirtypes'

export async function handler(medplum: MedplumClient, event: BotEvent<Patient>) {
  const patient = event.input
  const to = patient.telecom?.find(({ system }) => system === 'email')?.value
  if (!to) return { sent: false }
  const text = `Welcome, ${formatGivenName(patient.name?.[0] ?? {})}!`
  await medplum.sendEmail({ to, subject: 'Welcome', text })
  const comment = await medplum.createComment(patient, text)
  return { sent: true, comment: comment.id, about: createReference(patient).reference }
}
