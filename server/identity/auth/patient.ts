/**
 * The choice of a patient, where an app that was not started from a record asks for one (`launch/patient`).
 * https://hl7.org/fhir/smart-app-launch/scopes-and-launch-context.html#requesting-context-with-scopes
 * People choose on our page, among the patients that their membership may see; a client library that signs in by itself
 * gets no patient.
 */
import { badRequest, HttpError } from '../../../shared/errors.ts'
import { parseReference, type Resource, referenceIn } from '../../../shared/fhir/resource.ts'
import { displayOf } from '../../../shared/identity/principals.ts'
import { escapeValue } from '../../../shared/query/values.ts'
import { found } from '../../../shared/rest/search/criteria.ts'
import type { Services } from '../../../shared/services.ts'
import { parseVersion } from '../../../shared/store/rows/rows.ts'
import type { Context } from '../../context.ts'
import { isBound } from '../browser.ts'
import { audit, patchLogin, requireOpen } from '../logins.ts'
import type { Fields } from './fields.ts'
import { openLogin, requireLogin } from './login.ts'
import { loginResult } from './sign-in.ts'

const PAGE = 20
const LONGEST_NAME = 100

/** True where a person has to say which patient is meant. */
export function wantsPatient(login: Resource): boolean {
  const words = String(login.scope ?? '').split(' ')
  const isStandalone = login.launch === undefined && login.profileType !== 'Patient'
  return isStandalone && isBound(login) && words.includes('launch/patient')
}

/** A page of the patients that the member may see. Errors: 400, 403. */
export async function listPatients(services: Services, ctx: Context, id: string) {
  const login = await requireLogin(services, ctx, id)
  const principal = await chooserOf(services, login)
  const { name, cursor } = ctx.query
  const query = new URLSearchParams({ _sort: 'name' })
  if (typeof name === 'string' && name.trim() !== '') {
    query.set('name', escapeValue(name.slice(0, LONGEST_NAME)))
  }
  const page = { count: PAGE, cursor: typeof cursor === 'string' ? cursor : undefined }
  const { versions, next } = await found({ services, principal }, 'Patient', query, page)
  const patients = versions.map((version) => {
    const patient = parseVersion(version)
    const { birthDate, gender } = patient
    return {
      id: version.id,
      name: displayOf(patient) ?? 'Patient without a name',
      birthDate,
      gender,
    }
  })
  return { patients, next }
}

/** Errors: 400 for a patient whom the member does not see. */
export async function choosePatient(
  services: Services,
  ctx: Context,
  fields: Fields,
): Promise<Record<string, unknown>> {
  const login = await openLogin(services, ctx, fields)
  const id = fields.required('patient', 'Patient')
  fields.check()
  const principal = await chooserOf(services, login)
  const reference = `Patient/${id}`
  if (parseReference(reference) === undefined) throw badRequest('Patient not found', 'patient')
  await services.repository.read(principal, 'Patient', id).catch((error: unknown) => {
    throw error instanceof HttpError ? badRequest('Patient not found', 'patient') : error
  })
  const next = await patchLogin(services, login.id ?? '', (current) => {
    requireOpen(current)
    return { ...current, patient: { reference } }
  })
  const { profile: who, project } = principal
  audit(services, ctx, {
    kind: 'login',
    outcome: '0',
    what: `${reference} chosen for an app`,
    who,
    projectId: project.id,
  })
  return await loginResult(services, ctx, next)
}

/** The member, before any scope. A code shows that the second factor and the choice of a profile are done. */
async function chooserOf({ principals }: Services, login: Resource) {
  const membership = parseReference(referenceIn(login.membership))?.id
  if (!wantsPatient(login) || login.code === undefined || membership === undefined) {
    throw badRequest('There is no patient to choose', 'login')
  }
  const session = await principals.forMembership(membership)
  if (session === undefined) throw badRequest('Login revoked', 'login')
  return session.principal
}
