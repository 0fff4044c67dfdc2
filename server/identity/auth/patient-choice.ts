/**
 * Patient selection for standalone launches with `launch/patient`. People choose on our page, among the patients
 * visible to their membership; client libraries that sign in by themselves get none.
 * https://hl7.org/fhir/smart-app-launch/scopes-and-launch-context.html#requesting-context-with-scopes
 */
import { badRequest, HttpError } from '../../../shared/core/errors.ts'
import { parseReference, type Resource, targetIn } from '../../../shared/fhir/resource.ts'
import { displayName } from '../../../shared/identity/principals.ts'
import type { Services } from '../../../shared/request/services.ts'
import { searchByQuery } from '../../../shared/rest/criteria.ts'
import { escapeValue } from '../../../shared/search/language/values.ts'
import { parseVersion } from '../../../shared/store/rows/rows.ts'
import type { Context } from '../../http/context.ts'
import { isBoundToBrowser } from '../browser.ts'
import { withPatient } from '../login-states.ts'
import { changeLogin } from '../login-store.ts'
import { audit } from '../sign-in-audit.ts'
import type { SignInFields } from './fields.ts'
import { type LoginStep, loginResult, openLogin, requireLogin } from './login-steps.ts'

const PAGE = 20
const LONGEST_NAME = 100

/** True when the person must still choose a patient. */
export function wantsPatient(login: Resource): boolean {
  const words = String(login.scope ?? '').split(' ')
  const isStandalone = login.launch === undefined && login.profileType !== 'Patient'
  return isStandalone && isBoundToBrowser(login) && words.includes('launch/patient')
}

/** Returns a page of the patients visible to the member. Errors: 400, 403. */
export async function listPatients(services: Services, ctx: Context, id: string) {
  const login = await requireLogin(services, ctx, id)
  const principal = await loadChooser(services, login)
  const { name, cursor } = ctx.query
  const query = new URLSearchParams({ _sort: 'name' })
  if (typeof name === 'string' && name.trim() !== '') {
    query.set('name', escapeValue(name.slice(0, LONGEST_NAME)))
  }
  const page = { count: PAGE, cursor: typeof cursor === 'string' ? cursor : undefined }
  const { versions, next } = await searchByQuery({ services, principal }, 'Patient', query, page)
  const patients = versions.map((version) => {
    const patient = parseVersion(version)
    const { birthDate, gender } = patient
    return {
      id: version.id,
      name: displayName(patient) ?? 'Patient without a name',
      birthDate,
      gender,
    }
  })
  return { patients, next }
}

/** Errors: 400 for a patient not visible to the member. */
export async function choosePatient(
  services: Services,
  ctx: Context,
  fields: SignInFields,
): Promise<LoginStep> {
  const login = await openLogin(services, ctx, fields)
  const id = fields.required('patient', 'Patient')
  fields.check()
  const principal = await loadChooser(services, login)
  const reference = `Patient/${id}`
  if (parseReference(reference) === undefined) throw badRequest('Patient not found', 'patient')
  await services.repository.read(principal, 'Patient', id).catch((error: unknown) => {
    throw error instanceof HttpError ? badRequest('Patient not found', 'patient') : error
  })
  const next = await changeLogin(services, login, (current) => withPatient(current, reference))
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

/** Returns the member without scope restrictions. A code implies that the second factor and the profile are settled. */
async function loadChooser({ principals }: Services, login: Resource) {
  const membership = targetIn(login.membership)?.id
  if (!wantsPatient(login) || login.code === undefined || membership === undefined) {
    throw badRequest('There is no patient to choose', 'login')
  }
  const session = await principals.forMembership(membership)
  if (session === undefined) throw badRequest('Login revoked', 'login')
  return session.principal
}
