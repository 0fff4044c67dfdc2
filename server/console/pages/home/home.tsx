/** The project at work, in one look. */
import { Page } from '../../parts/page.tsx'
import { useMe } from '../../session.ts'
import { texts } from '../../texts/texts.ts'

export function Home() {
  const { project } = useMe()
  return (
    <Page title={texts.home.title} hint={project.name}>
      {null}
    </Page>
  )
}
