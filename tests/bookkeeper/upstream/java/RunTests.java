// Runs one class of JUnit 4 tests. What it says begins with SAID: the fate of each test, its name and why it failed.
import org.junit.runner.Description;
import org.junit.runner.JUnitCore;
import org.junit.runner.Request;
import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;

public class RunTests {
  static class Listener extends RunListener {
    private Failure failure;
    private boolean ignored;

    @Override
    public void testStarted(Description test) {
      failure = null;
      ignored = false;
      System.out.println("BEGINS " + test.getMethodName());
    }

    @Override
    public void testFailure(Failure found) {
      if (failure == null) {
        failure = found;
        System.out.println(found.getTrace());
        if (found.getDescription().getMethodName() == null) say("failed", "(class)", found.getMessage());
      }
    }

    /** As BookKeeper's sources say that the test is for other parameters. */
    @Override
    public void testAssumptionFailure(Failure found) {
      ignored = true;
    }

    @Override
    public void testFinished(Description test) {
      say(failure != null ? "failed" : ignored ? "ignored" : "passed", test.getMethodName(), failure == null ? "" : failure.toString());
    }

    @Override
    public void testIgnored(Description test) {
      say("ignored", test.getMethodName(), "");
    }

    private static void say(String fate, String name, String why) {
      System.out.println("SAID " + fate + " " + name + " " + String.valueOf(why).replaceAll("\\s+", " "));
    }
  }

  // RunTests CLASS [METHOD]
  public static void main(String[] words) throws Exception {
    JUnitCore core = new JUnitCore();
    core.addListener(new Listener());
    Class<?> tests = Class.forName(words[0]);
    core.run(words.length == 1 ? Request.aClass(tests) : Request.method(tests, words[1]));
    System.out.println("SAID ended");
    System.out.flush();
    Runtime.getRuntime().halt(0);
  }
}
